"""The README names every command that there is, and the menu of the site every page."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import yaml
from blocks import ROOT

import fedl2g
from fedl2g.cli import app


def commands_of(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command below a group; of a group that does something by itself also the group's."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            if command.invoke_without_command:
                yield (*words, name)
            yield from commands_of(command, (*words, name))
        else:
            yield (*words, name)


def test_the_table_of_commands_names_each_of_them_once() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.partition("| command | what it does |\n|---|---|\n")[2].partition("\n\n")[0]
    calls = [call for line in table.splitlines() for call in re.findall(r"`([^`]+)`", line.split("|")[1])]
    words = [
        tuple(word for word in call.removeprefix("fedl2g ").split() if re.fullmatch(r"[a-z]+", word)) for call in calls
    ]
    assert sorted(words) == sorted(commands_of(app))


def test_the_menu_of_the_site_names_every_page() -> None:
    menu = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M)
    made = {"index.md", "release-notes.md", "contributing.md", "security-policy.md"}  # of files beside docs/
    assert sorted(menu) == sorted({path.name for path in (ROOT / "docs").glob("*.md")} | made)


def test_a_citation_is_that_of_this_version_and_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()  # what the format requires
    assert citation["version"] == fedl2g.__version__
    assert citation["license"] == re.search(r"Licence: (\S+)\.", (ROOT / "README.md").read_text(encoding="utf-8"))[1]  # type: ignore[index]
    (paper,) = citation["references"]
    assert paper["title"] in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
