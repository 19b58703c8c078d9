"""Rows about individual clients: their accuracy, and what a method changed for each of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from fedl2g import session
from fedl2g.errors import FedL2GError
from fedl2g.models.catalog import resolve_models
from fedl2g.report.collect import DATA_SETTINGS, Group, Run
from fedl2g.report.series import number
from fedl2g.round.record import selected_record
from fedl2g.runs.deployed import read_sites
from fedl2g.runs.verdicts import DEFAULT_REFERENCE, Difference, against, same_clients

Row = dict[str, Any]


@dataclass(frozen=True)
class Compared:
    """Methods against the reference that ran on the same data."""

    reference: Group
    differences: list[Difference] = field(repr=False)


def compare_groups(groups: Sequence[Group]) -> list[Compared]:
    """Every group against local training on the same data; against the first group where nobody trained locally."""
    found = []
    for members in _by_data(groups):
        rivals = [group for group in members if group.method == DEFAULT_REFERENCE] or members[:1]
        chosen: dict[str, tuple[Group, list[Group]]] = {}
        for group in (one for one in members if one not in rivals):
            reference = max(rivals, key=lambda rival: _alike(rival, group))
            chosen.setdefault(reference.label, (reference, []))[1].append(group)
        for reference, others in chosen.values():
            histories = {one.label: {run.seed: run.history for run in one.runs} for one in (reference, *others)}
            runs = reference.runs
            crossed = len(runs) > 1 and same_clients(run.directory.partition() for run in runs)
            over = {one.label: one.over for one in others}
            differences = [
                replace(one, over=reference.over and over[one.method])
                for one in against(reference.label, histories, crossed=crossed)
            ]
            if differences:
                found.append(Compared(reference, differences))
    return found


def _by_data(groups: Iterable[Group]) -> list[list[Group]]:
    found: dict[str, list[Group]] = {}
    for group in groups:
        settings = group.runs[0].settings
        found.setdefault(str([settings.get(name) for name in DATA_SETTINGS]), []).append(group)
    return list(found.values())


def _alike(one: Group, other: Group) -> int:
    """How many settings two groups share, options of their methods left out."""
    a, b = ({k: v for k, v in group.runs[0].settings.items() if k != "seed"} for group in (one, other))
    return sum(a[name] == b.get(name) for name in a if not name.startswith("method."))


def accuracy_rows(groups: Iterable[Group]) -> list[Row]:
    """Every client of every seed in the selected round."""
    rows = []
    for group in groups:
        for run in group.runs:
            best = selected_record(run.history)
            if best is None or best.accuracy is None:
                continue
            who = _Clients(run)
            rows += [
                {"method": group.label, **who.row(client), "accuracy": number(value, 4)}
                for client, value in sorted(best.accuracy.clients.items())
            ]
    return rows


def difference_rows(groups: Iterable[Group], compared: Iterable[Compared]) -> list[Row]:
    """What each method changed for every client, by seed or, where clients are the same in all seeds, in the mean."""
    by_label = {group.label: {run.seed: run for run in group.runs} for group in groups}
    rows = []
    for one in (difference for found in compared for difference in found.differences):
        runs = by_label[one.method]
        known = {seed: _Clients(runs[seed]) for seed in one.seeds}
        for change in one.clients:
            who = known[one.seeds[0] if change.seed is None else change.seed].row(change.client)
            seeds = ", ".join(map(str, one.seeds)) if change.seed is None else str(change.seed)
            changed = {"difference": number(100 * change.difference, 4), "change": change.change}
            rows.append({"method": one.method, **who, "seed": seeds, **changed})
    return rows


def architecture_rows(rows: Iterable[Mapping[str, Any]]) -> list[Row]:
    """The mean difference of the clients with the same architecture; empty unless there are several."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        found.setdefault((row["method"], row["architecture"]), []).append(row["difference"])
    if len({architecture for _, architecture in found}) < 2:
        return []
    return [
        {"method": method, "group": group, "difference": number(statistics.fmean(all_of)), "clients": len(all_of)}
        for (method, group), all_of in sorted(found.items(), key=lambda item: item[0][1])
    ]


def architectures_of(run: Run) -> tuple[str, ...]:
    """The architectures of a run, which its clients take in turn; empty if they are not known."""
    if run.directory.deployed:
        return ()  # only the sites know theirs
    try:
        return session.readable(resolve_models(run.settings["models"]))
    except (FedL2GError, KeyError, TypeError, AttributeError):
        return ()  # written by a version with other names: the page does without


class _Clients:
    """What is known of the clients of a run: their architectures and training samples."""

    def __init__(self, run: Run) -> None:
        self.seed = run.seed
        self._architectures = architectures_of(run)
        self._samples: list[int] = []
        self._sites = read_sites(run.directory.path) if run.directory.deployed else {}
        if run.directory.deployed:
            return  # only the sites know theirs
        with suppress(FedL2GError):  # a damaged partition: the page does without
            self._samples = [len(train) for train in run.directory.partition().train]

    def row(self, client: int) -> Row:
        names = self._architectures
        if (site := self._sites.get(client)) is not None:
            return {
                "client": client,
                "site": site.name,
                "seed": str(self.seed),
                "architecture": site.model or "",
                "samples": site.train_samples,
            }
        return {
            "client": client,
            "seed": str(self.seed),
            "architecture": names[client % len(names)] if names else "",
            "samples": self._samples[client] if client < len(self._samples) else None,
        }
