"""Puts the files beside docs/ on the site: README and CHANGELOG as pages, examples and code as files to open.

Links in the text are those that work in the repository; here they become links within the site.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "release-notes.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
}
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")
NAMED = re.compile(r"\[(?:[\w-]+/)*[\w-]+\.md\]\((?P<target>[^)#\s]+\.md)\)")
CODE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, and every other file of the repository that a page links to."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    texts = {_source(file.src_uri): file.content_string for file in files.documentation_pages()}
    targets = {_resolve(source, link) for source, text in texts.items() for link in _links(text)}
    for target in sorted(targets):
        if target not in PAGES and not target.startswith("docs/") and (ROOT / target).is_file():
            files.append(File.generated(config, target, abs_src_path=str(ROOT / target)))
    style = Path(__file__).with_name("site.css")
    files.append(File.generated(config, "assets/fedl2g.css", content=style.read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the links of a page to the places its targets have on the site, and call pages as the menu does."""
    source = _source(page.file.src_uri)
    kept: list[str] = []

    def keep(code: re.Match[str]) -> str:
        kept.append(code.group())
        return f"\0{len(kept) - 1}\0"

    titles = _titles(config.nav)

    def by_title(link: re.Match[str]) -> str:
        return f"[{titles[_on_site(_resolve(source, link['target']))]}]({link['target']})"

    text = NAMED.sub(by_title, CODE.sub(keep, markdown))
    text = LINK.sub(lambda link: _on_site(_resolve(source, link.group(1))), text)
    return re.sub("\0([0-9]+)\0", lambda mark: kept[int(mark.group(1))], text)


def _links(text: str) -> list[str]:
    return LINK.findall(CODE.sub("", text))


def _source(page: str) -> str:
    """The file of the repository that a page is made of."""
    return next((source for source, made in PAGES.items() if made == page), f"docs/{page}")


def _resolve(source: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))


def _titles(menu: Any) -> dict[str, str]:
    """The title of every page of a menu."""
    titles: dict[str, str] = {}
    for entry in menu:
        for title, inside in entry.items():
            titles |= _titles(inside) if isinstance(inside, list) else {inside: title}
    return titles


def _on_site(target: str) -> str:
    """All pages are at the top of the site, so that a path is the same from each."""
    return PAGES.get(target, target.removeprefix("docs/"))
