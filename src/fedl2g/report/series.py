"""Numbers of runs over rounds, and what a round costs: what charts and tables show."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedl2g.report.collect import Group, Run
from fedl2g.round.record import MB, RoundRecord, seconds_per_client, selected_record


def band(series: Sequence[Mapping[int, float]]) -> dict[str, list[Any]]:
    """Rounds, and the mean, minimum and maximum over seeds; values that are not finite are left out."""
    rounds = sorted(set().union(*series)) if series else []
    columns = [[one[r] for one in series if r in one and math.isfinite(one[r])] for r in rounds]
    kept = [(r, column) for r, column in zip(rounds, columns, strict=True) if column]
    return {
        "x": [r for r, _ in kept],
        "y": [number(statistics.fmean(c)) for _, c in kept],
        "low": [number(min(c)) for _, c in kept],
        "high": [number(max(c)) for _, c in kept],
    }


def number(value: float | None, digits: int = 6) -> float | None:
    """A number rounded to `digits` significant digits; None if it is not finite, which JSON cannot express."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def accuracy_series(history: Iterable[RoundRecord]) -> dict[int, float]:
    """Pooled test accuracy by round."""
    return {r.round: r.accuracy.pooled for r in history if r.accuracy is not None}


def best_accuracy(run: Run) -> float:
    """Pooled test accuracy in the best round; NaN before the first evaluation."""
    best = selected_record(run.history)
    return float("nan") if best is None or best.accuracy is None else best.accuracy.pooled


def loss_series(history: Iterable[RoundRecord]) -> dict[int, float]:
    """Original local loss (cross entropy alone) by round."""
    return {r.round: r.loss for r in history if r.loss is not None}


def trained_losses(run: Run) -> dict[int, float]:
    """Original local loss by round of training; warm-up rounds, which train no model, are skipped."""
    return dict(enumerate(loss_series(run.history).values(), start=1))


def spent_megabytes(group: Group) -> dict[str, list[Any]]:
    """Accuracy by cumulative megabytes in both directions, summed over participants; both as means over seeds."""
    spent = []
    for run in group.runs:
        total, series = 0.0, {}
        for record in run.history:
            total += (record.up_bytes + record.down_bytes) / MB
            series[record.round] = total
        spent.append(series)
    line = band([accuracy_series(run.history) for run in group.runs])
    means = [statistics.fmean(one[r] for one in spent if r in one) for r in line["x"]]
    return {**line, "x": [number(mean) for mean in means]}


def cost(run: Run) -> dict[str, float | None]:
    """Of a round: megabytes of all participants, seconds of one client and of the server; warm-up rounds apart."""
    rounds = [r for r in run.history if r.round > 0]
    warm = [r for r in rounds if r.round <= run.warmup_rounds]
    training = [r for r in rounds if r.round > run.warmup_rounds]

    def mean(values: Sequence[float]) -> float | None:
        return number(statistics.fmean(values)) if values else None

    client_total = sum(r.client_seconds for r in rounds)
    return {
        "up_mb": mean([r.up_bytes / MB for r in rounds]),
        "down_mb": mean([r.down_bytes / MB for r in rounds]),
        "client_s": number(seconds_per_client(training)),
        "warmup_client_s": number(seconds_per_client(warm)),
        "server_s": mean([r.server_seconds for r in rounds]),
        "warmup_share": number(sum(r.client_seconds for r in warm) / client_total) if warm and client_total else None,
    }


def metric_names(groups: Iterable[Group]) -> list[str]:
    """The clients' own numbers that were recorded in any round, such as the alignment of FedL2G."""
    found = [name for group in groups for run in group.runs for record in run.history for name in record.metrics]
    return list(dict.fromkeys(found))


def metric_series(history: Iterable[RoundRecord], name: str) -> dict[int, float]:
    """One of the clients' own numbers by round, mean over the clients that sent it."""
    return {r.round: r.metrics[name] for r in history if name in r.metrics}
