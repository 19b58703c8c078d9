"""The HTML page about runs: one file with its data, style and script that loads nothing."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedl2g.errors import SettingError
from fedl2g.files import reason_of, replacing
from fedl2g.report.cards import Card, Section, sections
from fedl2g.report.charts.render import runtime, specification
from fedl2g.report.collect import read_runs
from fedl2g.report.content import Content, Progress, collect
from fedl2g.report.drawings import look_of
from fedl2g.report.page_tables import results_caption, results_table, run_tables


def write_report(
    paths: Sequence[Path],
    target: Path,
    *,
    title: str = "",
    tsne: bool = True,
    notes: Sequence[str] = (),
    trust: bool = False,
    progress: Progress = lambda what, done, total: None,
) -> Path:
    """Write the report of these runs (directories, or folders of them) to an HTML file.

    Runs that name code are refused without `trust`: their networks are built for t-SNE.
    """
    runs = read_runs(paths, trust=trust)
    if not runs:
        raise SettingError(f"{', '.join(map(str, paths))}: no runs found; start one with `fedl2g run`")
    content = collect(runs, title=title, tsne=tsne, notes=notes, progress=progress)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target, durable=False) as partial:
            partial.write_text(page(content), encoding="utf-8")
    except OSError as error:
        raise SettingError(f"{target}: cannot be written ({reason_of(error)}); choose another file") from error
    return target


@dataclass(frozen=True)
class Extra:
    """What a live page shows besides a report's cards; the caller's HTML has all foreign text escaped."""

    top: str = ""
    sections: tuple[Section, ...] = ()
    bottom: str = ""
    first: tuple[str, ...] = ()  # the sections that come before the others, by their ids


_NOTHING = Extra()


def page(content: Content, *, live: str = "", extra: Extra = _NOTHING) -> str:
    """The HTML page. Text from run directories is untrusted and always escaped.

    `live` is the path of server-sent events on the page's own server, each with a new `fragment` as JSON; without
    it the page makes no connection at all.
    """
    return framed(content.title, fragment(content, extra=extra), live=live)


def framed(title: str, first: Mapping[str, Any], *, live: str = "") -> str:
    """The HTML page around its first fragment."""
    source = files("fedl2g.report") / "assets"
    style, script, frame = ((source / f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js", "html"))
    library = runtime()
    parts = {
        "@TITLE@": html.escape(title),
        "@CONNECT@": "; connect-src 'self'" if live else "",
        "@HASHES@": " ".join(f"'sha256-{_digest(text)}'" for text in (library, script)),
        "@STYLE@": style,
        "@MAIN@": first["main"],
        "@DATA@": embed_json({"charts": first["charts"], "methods": first["methods"], "live": live}),
        "@LIBRARY@": library,
        "@SCRIPT@": script,
    }
    # In one pass, so that inserted text is not searched for placeholders.
    return re.sub("|".join(parts), lambda mark: parts[mark[0]], frame)


def fragment(content: Content, *, extra: Extra = _NOTHING) -> dict[str, Any]:
    """The parts of a page that change during runs: the HTML of its body, its charts, its methods with their colours."""
    found = [*sections(content), *extra.sections]
    found.sort(key=lambda section: extra.first.index(section.id) if section.id in extra.first else len(extra.first))
    look = look_of(content.groups, page=True)
    # The text says what a chart shows: for readers who cannot see it.
    charts = {
        card.id: [{"name": name, "spec": specification(chart, look)} for name, chart in card.charts]
        for section in found
        for card in section.cards
    }
    methods = [{"label": label, "colour": style.colour, "dash": style.dash} for label, style in look.styles.items()]
    return {"main": _main(content, found, extra), "charts": charts, "methods": methods}


def embed_json(values: object) -> str:
    """JSON that is safe inside a script element, whatever strings it contains."""
    text = json.dumps(values, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _main(content: Content, found: Sequence[Section], extra: Extra) -> str:
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in content.notes)
    table = (
        f'<p class="muted" id="about">{html.escape(results_caption(content))}</p>'
        f'<div class="scroll"><table id="table" aria-describedby="about">{results_table(content)}</table></div>'
    )
    return "".join(
        [
            f'<header><h1>{html.escape(content.title)}</h1><p class="muted">{html.escape(content.made)}</p>',
            f'<ul id="notes">{notes}</ul></header>' if notes else "</header>",
            '<nav id="legend" aria-label="Methods shown"></nav>',
            extra.top,
            *(_section(one, table if one.id == "help" else "") for one in found if _shown(one, content)),
            extra.bottom,
            _runs(content) if content.groups else "",
        ]
    )


def _shown(section: Section, content: Content) -> bool:
    """Whether there is anything to show; the table of results stands with the first question."""
    return bool(section.cards or section.sentences or (section.id == "help" and content.groups))


def _runs(content: Content) -> str:
    return f'<section id="run"><h2>Settings and runs</h2><div id="settings">{run_tables(content)}</div></section>'


def _section(section: Section, table: str = "") -> str:
    sentences = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in section.sentences)
    said = f'<ul class="verdicts">{sentences}</ul>' if sentences else ""
    if section.summary:
        said = f"<details><summary>{html.escape(section.summary)}</summary>{said}</details>"
    cards = "".join(map(_card, section.cards))
    return (
        f'<section id="{section.id}"><h2>{section.question}</h2>'
        + said
        + table
        + (f'<div class="grid">{cards}</div>' if cards else "")
        + "</section>"
    )


def _card(card: Card) -> str:
    about = "".join(f"<p>{html.escape(note)}</p>" for note in card.notes)
    return (
        f'<figure class="card{" wide" if card.wide else ""}" id="{card.id}" data-zoom="{card.zoom}">'
        f"<h3>{html.escape(card.title)}</h3><figcaption>{html.escape(card.caption)}</figcaption>"
        f'<div class="tools"></div>'
        f'<div class="chart" role="img" aria-label="{html.escape(card.title)}"></div>'
        + (f'<div class="why"><b>About these megabytes</b>{about}</div>' if about else "")
        + "</figure>"
    )
