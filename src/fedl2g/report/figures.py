"""Figures made from runs (matplotlib): accuracy and loss curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedl2g.errors import SettingError
from fedl2g.records import RoundRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".png", ".pdf", ".svg")


def draw_curves(histories: Mapping[str, Sequence[Sequence[RoundRecord]]], path: Path) -> Path:
    """Accuracy and original local loss over rounds: a line per method, a band of one standard deviation over seeds."""
    if path.suffix not in FORMATS:
        raise SettingError(f"cannot draw to {path.name!r}: the name must end in {', '.join(FORMATS)}")
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for label, seeds in histories.items():
        _band(left, label, [_series(history, "accuracy") for history in seeds])
        _band(right, label, [_series(history, "loss") for history in seeds])
    left.set(title="Test accuracy (pooled over clients)", xlabel="round", ylabel="accuracy")
    right.set(title="Original local loss (cross entropy)", xlabel="round", ylabel="loss")
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def _series(history: Sequence[RoundRecord], what: str) -> dict[int, float]:
    if what == "accuracy":
        return {r.round: r.accuracy.pooled for r in history if r.accuracy is not None}
    return {r.round: r.loss for r in history if r.loss is not None}


def _band(axes: Axes, label: str, series: Sequence[dict[int, float]]) -> None:
    rounds = sorted(set().union(*series))
    if not rounds:
        axes.plot([], [], label=label)  # keeps the colours of both panels in step
        return
    values: NDArray[np.float64] = np.array([[one.get(r, np.nan) for r in rounds] for one in series])
    mean = np.nanmean(values, axis=0)
    (line,) = axes.plot(rounds, mean, label=label, linewidth=1.6)
    if len(series) > 1:
        std = np.nanstd(values, axis=0)
        axes.fill_between(rounds, mean - std, mean + std, color=line.get_color(), alpha=0.15, linewidth=0)
