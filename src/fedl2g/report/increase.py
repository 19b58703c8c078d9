"""The figure of the paper's introduction: how a method raises the clients' original local loss (imports no torch)."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fedl2g.report.collect import DATA_SETTINGS, Group, Run
from fedl2g.report.series import band, best_accuracy, number, trained_losses
from fedl2g.runs.verdicts import DEFAULT_REFERENCE


def loss_increase(groups: Sequence[Group]) -> dict[str, Any]:
    """What the figure shows, by label.

    `per_round`: the loss of each round of training less its minimum in earlier rounds; above zero, the loss rises.
    `rise`: the largest of these, 0 if the loss never rose. `accuracy`: the accuracy of the best round. `relative`: the
    loss minus that of local training after as many rounds of training on the same seed (needs a group of the method
    `local` with the same data).
    """
    alone = [run for group in groups if group.method == DEFAULT_REFERENCE for run in group.runs]
    local = {_data_key(run): trained_losses(run) for run in alone}
    found: dict[str, Any] = {"per_round": {}, "rise": {}, "accuracy": {}, "relative": {}}
    for group in groups:
        series = [trained_losses(run) for run in group.runs]
        increases = [per_round_increase(one) for one in series if one]
        if increases:
            found["per_round"][group.label] = band(increases)
            found["rise"][group.label] = over_seeds([max([0.0, *one.values()]) for one in increases])
            found["accuracy"][group.label] = over_seeds([best_accuracy(run) for run in group.runs])
        if group.method == DEFAULT_REFERENCE:
            continue
        pairs = [(one, local.get(_data_key(run))) for one, run in zip(series, group.runs, strict=True)]
        differences = [{n: v - other[n] for n, v in one.items() if n in other} for one, other in pairs if other]
        if any(differences):
            found["relative"][group.label] = band(differences)
    return found


def per_round_increase(losses: Mapping[int, float]) -> dict[int, float]:
    """Each loss less the smallest before it, from the second on; infinite where a loss is not finite."""
    lowest, found = math.inf, {}
    for place, (round, loss) in enumerate(losses.items()):
        if place > 0:
            found[round] = loss - lowest if math.isfinite(loss) else math.inf
        if math.isfinite(loss):
            lowest = min(lowest, loss)
    return found


def over_seeds(values: Sequence[float]) -> dict[str, Any]:
    """The mean and the values of each seed."""
    return {"mean": number(statistics.fmean(values)), "seeds": [number(value) for value in values]}


def _data_key(run: Run) -> str:
    names = (*DATA_SETTINGS, "seed", "models", "participation", "local_epochs", "client_lr", "batch_size")
    return json.dumps([run.settings.get(name) for name in names])
