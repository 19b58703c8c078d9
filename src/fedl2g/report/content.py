"""What a page about runs shows: the runs in groups, verdicts, partitions, planes of t-SNE, who took part."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedl2g.report.clients import Compared, compare_groups
from fedl2g.report.collect import DATA_SETTINGS, Group, Run, group_runs, partition_counts
from fedl2g.report.presence import presence
from fedl2g.round.record import RoundRecord
from fedl2g.runs.deployed import read_sites
from fedl2g.version import __version__

if TYPE_CHECKING:
    from fedl2g.methods.base import Traits

MAX_EMBEDDINGS = 4
MAX_PARTITIONS = 8
MAX_PRESENCE = 12  # charts of client availability
Progress = Callable[[str, int, int | None], None]


def _silent(what: str, done: int, total: int | None) -> None:
    pass


@dataclass(frozen=True)
class Named:
    """One of several parts of a page, which a reader chooses by name."""

    name: str
    values: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Content:
    """Everything that a page shows; `fedl2g.report.page.page` renders it."""

    title: str
    made: str
    notes: list[str]
    groups: list[Group] = field(repr=False)
    compared: list[Compared] = field(repr=False)
    partitions: list[Named] = field(repr=False)
    embeddings: list[Named] = field(repr=False)
    presence: list[Named] = field(repr=False)

    @property
    def runs(self) -> list[Run]:
        return [run for group in self.groups for run in group.runs]


def collect(
    runs: Sequence[Run],
    *,
    title: str = "",
    tsne: bool = True,
    notes: Sequence[str] = (),
    progress: Progress = _silent,
) -> Content:
    """The content of a page about these runs, finished or not; t-SNE takes seconds, a live page does without."""
    groups = group_runs(runs)
    datasets = list(dict.fromkeys(Path(str(run.settings["dataset"])).stem for run in runs))
    at = time.strftime("%Y-%m-%d %H:%M %Z").strip()
    count = f"{len(runs)} {'runs' if len(runs) != 1 else 'run'}"
    return Content(
        title=title or f"{len(groups)} {'methods' if len(groups) != 1 else 'method'} on {', '.join(datasets)}",
        made=f"{count} · fedl2g {__version__} · made {at}",
        notes=[*notes, *_site_notes(runs)],
        groups=groups,
        compared=compare_groups(groups),
        partitions=_partitions(runs, progress),
        embeddings=_embeddings(groups, progress) if tsne else [],
        presence=_presence(groups),
    )


def _site_notes(runs: Sequence[Run]) -> list[str]:
    """The sites of deployed runs, as far as their files allow."""
    found = []
    for run in (run for run in runs if run.directory.deployed):
        sites = read_sites(run.directory.path).values()
        words = [
            f"{site.name} ({site.model or 'network not disclosed'}"
            + ("" if site.train_samples is None else f", {site.train_samples} training samples")
            + ("" if site.test_samples is None else f", {site.test_samples} test samples")
            + ")"
            for site in sites
        ]
        found += [f"Sites: {', '.join(words)}."] if words else []
    return list(dict.fromkeys(found))


def byte_notes(groups: Sequence[Group]) -> list[str]:
    """Notes on the communication of these methods."""
    notes = [traits.communication_note for group in groups if (traits := group.traits) and not _dense(group, traits)]
    return list(dict.fromkeys(note for note in notes if note))


def _dense(group: Group, traits: Traits) -> bool:
    """Whether its clients send a row for every class, which makes notes on the number of rows wrong."""
    settings = group.runs[0].settings
    dense = settings.get("privacy.clip") or settings.get("privacy.dense_uploads")
    return traits.uploads == "class vectors" and bool(dense)


def _partitions(runs: Sequence[Run], progress: Progress) -> list[Named]:
    chosen: dict[tuple[str, ...], Run] = {}
    for run in (run for run in runs if not run.directory.deployed):
        chosen.setdefault(tuple(str(run.settings.get(name)) for name in (*DATA_SETTINGS, "seed")), run)
    result = []
    for done, run in enumerate(list(chosen.values())[:MAX_PARTITIONS]):
        progress("reading partitions", done, len(chosen))
        dataset, partition, clients = (str(run.settings[name]) for name in ("dataset", "partition", "clients"))
        name = f"{Path(dataset).stem}, {partition}, {clients} clients, seed {run.seed}"
        result.append(Named(name, partition_counts(run)))
    return result


def _embeddings(groups: Sequence[Group], progress: Progress) -> list[Named]:
    from fedl2g.report.embedding import embed, embeddable

    result: list[Named] = []
    wanted = embeddable(groups)
    for done, group in enumerate(wanted):
        if len(result) == MAX_EMBEDDINGS:
            break
        progress(f"t-SNE of {group.label}", done, len(wanted))
        found = embed(group.runs[0])
        if found is not None:
            result.append(Named(f"{group.label}, seed {group.runs[0].seed}", found))
    return result


def _presence(groups: Sequence[Group]) -> list[Named]:
    """Who took part, for the first run of each group in which not all clients did.

    Methods with identical availability, as with equal settings and seed, share one chart.
    """
    shared: dict[tuple[int, str], tuple[list[str], list[list[int]]]] = {}
    for group in groups:
        run = group.runs[0]
        clients = int(run.settings["clients"])
        if any(_somebody_absent(record, clients) for record in run.history):
            grid = presence(run.history, clients)
            shared.setdefault((run.seed, json.dumps(grid)), ([], grid))[0].append(group.label)
    return [
        Named(f"{'; '.join(labels)} (seed {seed})", {"grid": grid})
        for (seed, _), (labels, grid) in list(shared.items())[:MAX_PRESENCE]
    ]


def _somebody_absent(record: RoundRecord, clients: int) -> bool:
    not_asked = record.round > 0 and len(record.participants) < clients
    return bool(not_asked or record.away or record.missing or record.refused)
