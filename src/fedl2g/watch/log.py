"""What happened, line by line: the coordinator's log, rounds, refused and missing replies. All text is escaped."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Sequence

from fedl2g.errors import RunError
from fedl2g.report.collect import Group, Run
from fedl2g.report.content import Content
from fedl2g.round.record import MB, RoundRecord
from fedl2g.runs.deployed import read_sites
from fedl2g.watch.found import LOG
from fedl2g.watch.now import state_of

MOST_LINES = 60
MOST_BLOCKS = 4
_TAIL = 32_768  # bytes of a log that are read
_LARGEST = 2**40  # effectively none: only the end is read


def log_section(content: Content) -> str:
    """The end of each coordinator's log, the last rounds of the runs under way, and every reply that was not used."""
    members = [(group, run) for group in content.groups for run in group.runs]
    parts = [_block(str(run.directory.path / LOG), lines) for _, run in members if (lines := _tail(run))]
    under_way = [member for member in members if member[1].status == "running"]
    shown = under_way or members[-1:]  # nothing is running: the last one
    parts += [_block(f"{group.label}, seed {run.seed}", _rounds(run)) for group, run in shown[:MOST_BLOCKS]]
    if unused := [line for group, run in members for line in _unused(group, run)]:
        parts.append(_block("Refused and missing replies", unused[-MOST_LINES:]))
    return f'<section id="log"><h2>Log</h2>{"".join(parts)}</section>' if parts else ""


def _rounds(run: Run) -> list[str]:
    """A line per round, the newest last, and how the run stands."""
    return [*map(_round, run.history[1 - MOST_LINES :]), state_of(run)]


def _round(record: RoundRecord) -> str:
    parts = [] if record.accuracy is None else [f"accuracy {record.accuracy.pooled:.2%}"]
    if record.loss is not None:
        parts.append(f"loss {record.loss:.4f}")
    if record.round > 0:
        seconds = record.client_seconds + record.server_seconds + record.evaluation_seconds
        parts += [
            f"{len(used(record))} of {len(record.participants)} replies used",
            f"{seconds:.2f} s",
            f"{(record.up_bytes + record.down_bytes) / MB:.2f} MB",
        ]
    if record.hostile:
        parts.append(f"attacked by {_listed(record.hostile)}")
    return f"round {record.round}: {', '.join(parts)}"


def used(record: RoundRecord) -> list[int]:
    """The participants whose replies were used."""
    return [client for client in record.participants if client not in record.refused and client not in record.missing]


def _listed(clients: Iterable[int]) -> str:
    return f"client {', '.join(map(str, clients))}"


def _unused(group: Group, run: Run) -> list[str]:
    sites = read_sites(run.directory.path) if run.directory.deployed else {}
    named = {client: f" ({site.name})" for client, site in sites.items()}
    return [
        f"{group.label}, seed {run.seed}, round {record.round}: client {client}{named.get(client, '')} {what}: {why}"
        for record in run.history
        for what, found in (("was refused", record.refused), ("did not reply", record.missing))
        for client, why in found.items()
    ]


def _tail(run: Run) -> list[str]:
    try:
        with run.directory.folder.opened(LOG, _LARGEST) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _TAIL, 0))
            text = file.read().decode("utf-8", errors="replace")
    except (OSError, RunError):
        return []
    return text.splitlines()[-MOST_LINES:]


def _block(title: str, lines: Sequence[str]) -> str:
    return f'<h3>{html.escape(title)}</h3><pre class="log">{html.escape(chr(10).join(lines))}</pre>'
