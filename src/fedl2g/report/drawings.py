"""What each chart shows of groups of runs; pages, `fedl2g plot` and the paper's figures draw the same."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedl2g.datasets.partition import Partition
from fedl2g.report.charts.bars import bars
from fedl2g.report.charts.bubbles import bubbles, sizes
from fedl2g.report.charts.curves import Band, curves
from fedl2g.report.charts.embedding import embedding
from fedl2g.report.charts.intervals import intervals
from fedl2g.report.charts.parts import Panel
from fedl2g.report.charts.presence import MOST_CELLS, presence_counts, presence_grid
from fedl2g.report.charts.theme import Look, styles_of
from fedl2g.report.clients import Compared
from fedl2g.report.collect import Group, Run
from fedl2g.report.increase import loss_increase
from fedl2g.report.presence import KINDS
from fedl2g.report.series import (
    accuracy_series,
    band,
    best_accuracy,
    cost,
    loss_series,
    metric_series,
    number,
    spent_megabytes,
)

MOST_POINTS = 4000  # of all lines of a chart together: a page must stay small
_FEWEST = 100  # of a line


def look_of(groups: Sequence[Group], *, page: bool = False) -> Look:
    """The look of charts about these groups."""
    return Look(styles_of([(group.label, group.method) for group in groups]), page)


def accuracy(groups: Sequence[Group], look: Look, **kwargs: Any) -> Panel:
    """Pooled test accuracy by round."""
    return curves(lines(groups, _accuracy), look, x="round", y="test accuracy", form=".2%", **kwargs)


def loss(groups: Sequence[Group], look: Look, **kwargs: Any) -> Panel:
    """The clients' original local loss by round."""
    return curves(lines(groups, _loss), look, x="round", y="loss", form=".4f", **kwargs)


def metric(groups: Sequence[Group], look: Look, name: str, **kwargs: Any) -> Panel:
    """One of the clients' own numbers by round, with a line at zero."""
    found = lines(groups, lambda run: metric_series(run.history, name))
    return curves(found, look, x="round", y=name, form=".3f", zero=True, **kwargs)


def loss_against_local(groups: Sequence[Group], look: Look, **kwargs: Any) -> Panel:
    """The loss minus that of local training after as many rounds of training."""
    found = {label: thinned(line, len(groups)) for label, line in loss_increase(groups)["relative"].items()}
    return curves(found, look, x="round of training", y="loss minus local", form="+.4f", zero=True, **kwargs)


def loss_per_round(groups: Sequence[Group], look: Look, **kwargs: Any) -> Panel:
    """The loss of each round of training less its own earlier minimum."""
    found = {label: thinned(line, len(groups)) for label, line in loss_increase(groups)["per_round"].items()}
    return curves(found, look, x="round of training", y="loss increase", form="+.4f", zero=True, **kwargs)


def loss_rise(groups: Sequence[Group], look: Look, **kwargs: Any) -> Panel:
    """The largest climb of the loss above its own earlier minimum, mean over seeds."""
    rises = loss_increase(groups)["rise"]
    rows = [
        {"method": label, "part": "rise", "value": rise["mean"]}
        for label, rise in rises.items()
        if rise["mean"] is not None
    ]
    return bars(rows, look, x="loss", form=".4f", **kwargs)


def megabytes(groups: Sequence[Group], look: Look, **kwargs: Any) -> Panel:
    """Accuracy against the megabytes sent so far; a method that sends nothing is a level: its best accuracy."""
    found = {group.label: thinned(spent_megabytes(group), len(groups)) for group in groups}
    levels = {}
    for group in groups:
        line = found[group.label]
        if line["x"] and not line["x"][-1]:
            seeds = [value for run in group.runs if (value := number(best_accuracy(run))) is not None]
            levels[group.label] = {"y": number(statistics.fmean(seeds)), "low": min(seeds), "high": max(seeds)}
            del found[group.label]
    across = "MB sent, up and down, all clients"
    return curves(found, look, x=across, y="test accuracy", form=".2%", levels=levels, **kwargs)


def communication(groups: Sequence[Group], look: Look, **kwargs: Any) -> Panel:
    """Megabytes per round, up and down."""
    parts = {"up": "up_mb", "down": "down_mb"}
    return bars(_cost_rows(groups, parts), look, x="MB per round", form=",.3~r", **kwargs)


def computation(groups: Sequence[Group], look: Look, **kwargs: Any) -> Panel:
    """Seconds per round, of one client and of the server."""
    parts = {"a client": "client_s", "a client in a warm-up round": "warmup_client_s", "server": "server_s"}
    return bars(_cost_rows(groups, parts), look, x="seconds per round", form=",.3~r", **kwargs)


def best_accuracies(groups: Sequence[Group], look: Look, **kwargs: Any) -> Panel:
    """The accuracy of the selected round: every seed, and their mean."""
    rows = []
    for group in groups:
        seeds = [value for run in group.runs if (value := number(best_accuracy(run))) is not None]
        if seeds:
            text = f"{len(seeds)} seeds" if len(seeds) > 1 else "one seed"
            mean = number(statistics.fmean(seeds))
            rows.append({"method": group.label, "mean": mean, "low": None, "high": None, "seeds": seeds, "text": text})
    return intervals(rows, look, x="test accuracy in the selected round", **kwargs)


def verdicts(groups: Sequence[Group], compared: Sequence[Compared], look: Look, **kwargs: Any) -> Panel:
    """Each method minus its reference: the difference, its interval and every seed."""
    best = {group.label: {run.seed: best_accuracy(run) for run in group.runs} for group in groups}
    rows = []
    for found in compared:
        for one in found.differences:
            seeds = [number(100 * (best[one.method][seed] - best[one.reference][seed])) for seed in one.seeds]
            span = {"mean": one.difference, "low": one.low, "high": one.high}
            in_points = {name: number(100 * value) for name, value in span.items()}
            rows.append({"method": one.method, **in_points, "seeds": seeds, "text": one.sentence})
    against = reference_name(compared)
    return intervals(rows, look, x=f"test accuracy minus {against}, points", form="+.2f", zero=True, **kwargs)


def reference_name(compared: Sequence[Compared]) -> str:
    """What the differences are differences to."""
    labels = {found.reference.label for found in compared}
    return labels.pop() if len(labels) == 1 else "the reference"


def partition(values: Mapping[str, Any], look: Look, **kwargs: Any) -> Panel:
    """Who holds how many samples of which class, from `partition_counts`."""
    if values["counts"] is None:
        return sizes(values["sizes"], look, **kwargs)
    clients, classes = len(values["sizes"]), values["classes"]
    return bubbles(
        values["counts"], look, clients=clients, classes=classes, class_names=values["class_names"], **kwargs
    )


def partition_of_data(found: Partition, labels: Any, names: Sequence[str], look: Look, **kwargs: Any) -> Panel:
    """The same of a partition in memory; the labels are those of all samples."""
    counts = found.counts(labels, len(names))
    cells = [(int(c), int(k), int(counts[c, k])) for c, k in zip(*counts.nonzero(), strict=True)]
    return bubbles(cells, look, clients=found.clients, classes=len(names), class_names=names, **kwargs)


def plane(values: Mapping[str, Any], look: Look, **kwargs: Any) -> Panel:
    """The plane of a t-SNE, from `fedl2g.report.embedding.embed`."""
    return embedding(values["points"], look, kinds=values["kinds"], class_names=values["class_names"], **kwargs)


def availability(grid: Sequence[Sequence[int]], look: Look, **kwargs: Any) -> Panel:
    """Who took part in which round; only how many, where a page could not show every client."""
    kinds = [(name, colour) for name, colour, _ in KINDS]
    draw = presence_grid if sum(map(len, grid)) <= MOST_CELLS else presence_counts
    return draw(grid, kinds, look, **kwargs)


def lines(groups: Sequence[Group], series: Callable[[Run], Mapping[int, float]]) -> dict[str, Band]:
    """A line for each group: the mean over its seeds, with the lowest and the highest of them."""
    return {group.label: thinned(band([series(run) for run in group.runs]), len(groups)) for group in groups}


def thinned(line: Band, among: int) -> dict[str, list[Any]]:
    """The line with fewer points where there are very many; its last point stays."""
    count = len(line["x"])
    step = -(-count // max(_FEWEST, MOST_POINTS // among))
    kept = [*range(0, count, max(step, 1)), *([count - 1] if count and (count - 1) % max(step, 1) else [])]
    return {name: [column[i] for i in kept] for name, column in line.items()}


def _accuracy(run: Run) -> dict[int, float]:
    return accuracy_series(run.history)


def _loss(run: Run) -> dict[int, float]:
    return loss_series(run.history)


def _cost_rows(groups: Sequence[Group], parts: Mapping[str, str]) -> list[dict[str, Any]]:
    """Means over the runs of a group; without parts that no group has."""
    rows = []
    for group in groups:
        costs = [cost(run) for run in group.runs]
        for part, name in parts.items():
            known = [value for one in costs if (value := one[name]) is not None]
            if known:
                rows.append({"method": group.label, "part": part, "value": number(statistics.fmean(known))})
    order = list(parts)
    return sorted(rows, key=lambda row: order.index(row["part"]))  # though the first method may lack a part
