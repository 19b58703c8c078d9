"""Figures of runs with matplotlib, as PNG, PDF or SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedl2g.errors import SettingError
from fedl2g.files import reason_of
from fedl2g.report.collect import Group, accuracy_series, cost, loss_series
from fedl2g.report.increase import loss_increase
from fedl2g.round.record import RoundRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".pdf", ".svg")


def draw_curves(histories: Mapping[str, Sequence[Sequence[RoundRecord]]], path: Path) -> Path:
    """Accuracy and original local loss over rounds: a line per method, a band of one standard deviation over seeds."""
    figure = new_figure(path, 11, 4.2)
    left, right = figure.subplots(1, 2)
    for label, seeds in histories.items():
        _band(left, label, [accuracy_series(history) for history in seeds])
        _band(right, label, [loss_series(history) for history in seeds])
    left.set(title="Test accuracy (pooled over clients)", xlabel="round", ylabel="accuracy")
    right.set(title="Original local loss (cross entropy)", xlabel="round", ylabel="loss")
    figure.legend(*left.get_legend_handles_labels(), loc="outside right upper", frameon=False)
    return save_figure(figure, path)


def draw_loss_increase(groups: Sequence[Group], path: Path) -> Path:
    """The figure of the paper's introduction: per-round loss increase with accuracies, and the loss beside local's."""
    found = loss_increase(groups)
    figure = new_figure(path, 11, 4.6)
    left, right = figure.subplots(1, 2)
    tints: dict[str, Any] = {}
    for label, line in found["per_round"].items():
        accuracy = found["accuracy"][label]["mean"]
        name = label if accuracy is None else f"{label} ({accuracy:.1%})"
        tints[label] = _line(left, name, line)
    left.set(
        title="Original local loss minus its earlier minimum\n(above 0 it rises; in brackets: best test accuracy)",
        xlabel="round of training",
        ylabel="loss increase of the round",
    )
    for label, line in found["relative"].items():
        _line(right, label, line, tints.get(label))
    if not found["relative"]:
        note = "needs a run of the method `local`\non the same data"
        right.text(0.5, 0.5, note, ha="center", transform=right.transAxes)
    right.set(title="Original local loss minus local training's", xlabel="round of training", ylabel="loss difference")
    for axes in (left, right):
        axes.axhline(0, color="0.4", linewidth=0.8, linestyle="--")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=8)
    return save_figure(figure, path)


def _line(axes: Axes, label: str, line: Mapping[str, Any], colour: Any = None) -> Any:
    """A line with its band over seeds; returns its colour."""
    (drawn,) = axes.plot(line["x"], line["y"], label=label, linewidth=1.6, color=colour)
    axes.fill_between(line["x"], line["low"], line["high"], color=drawn.get_color(), alpha=0.15, linewidth=0)
    return drawn.get_color()


def draw_costs(groups: Sequence[Group], path: Path) -> Path:
    """Megabytes and seconds per round by method, summed over participants."""
    costs = {group.label: cost(group.runs[0]) for group in groups}
    labels = list(costs)
    place = np.arange(len(labels))
    figure = new_figure(path, 11, 1.4 + 0.5 * len(labels))
    left, right = figure.subplots(1, 2)

    def bars(axes: Axes, shift: float, name: str, title: str, colour: str) -> None:
        axes.barh(place + shift, [costs[label][name] or 0.0 for label in labels], 0.26, label=title, color=colour)

    bars(left, -0.15, "up_mb", "up", "#2a6f97")
    bars(left, 0.15, "down_mb", "down", "#a9d6e5")
    bars(right, -0.28, "client_s", "clients", "#2a6f97")
    bars(right, 0.0, "warmup_client_s", "clients, warm-up round", "#a9d6e5")
    bars(right, 0.28, "server_s", "server", "#e07a5f")
    left.set(title="Communication per round", xlabel="MB")
    right.set(title="Computation per round", xlabel="seconds")
    if any((costs[label]["up_mb"] or 0) > 0 for label in labels):
        left.set_xscale("log")
    for axes in (left, right):
        axes.set_yticks(place, labels)
        axes.invert_yaxis()
        axes.legend(frameon=False)
    return save_figure(figure, path)


def draw_embeddings(groups: Sequence[Group], path: Path) -> Path:
    """t-SNE of guiding vectors and global prototypes among the clients' features, a panel per method."""
    from fedl2g.report.embedding import embed, embeddable

    found = {group.label: value for group in embeddable(groups) if (value := embed(group.runs[0])) is not None}
    if not found:
        raise SettingError(
            "tsne: nothing to draw; expected a run whose server sends class vectors (such as fedl2g-f), with its "
            "checkpoints and its dataset in the local cache"
        )
    names = {label: value["class_names"][label] for value in found.values() for label in sorted(value["classes"])}
    tint = _class_colours(sorted(names))
    figure = new_figure(path, 4.6 * len(found) + 1, 5)
    for axes, (label, value) in zip(np.atleast_1d(figure.subplots(1, len(found))), found.items(), strict=True):
        _scatter(axes, label, value, tint)
    marks = [axes.scatter([], [], color=tint[label], label=name) for label, name in names.items()]
    figure.legend(handles=marks, loc="outside right upper", frameon=False, fontsize=8, title="class")
    return save_figure(figure, path)


def _scatter(axes: Axes, label: str, value: Mapping[str, Any], tint: Mapping[int, Any]) -> None:
    looks: dict[str, dict[str, Any]] = {
        "dot": {"s": 6, "alpha": 0.45, "linewidths": 0},
        "ring": {"s": 70, "edgecolors": "black", "linewidths": 1.0},
        "diamond": {"s": 70, "marker": "D", "edgecolors": "black", "linewidths": 1.0},
    }
    marks = []
    for kind, name, form in value["kinds"]:
        points = [p for p in value["points"] if p[2] == kind]
        colours = [tint[p[3]] for p in points]
        axes.scatter([p[0] for p in points], [p[1] for p in points], c=colours, **looks[form])
        marks.append(axes.scatter([], [], label=name, c="0.6", **looks[form]))
    axes.set(title=f"{label} ({value['space']}, round {value['round']})", xticks=[], yticks=[])
    axes.legend(handles=marks, frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, 0))


def _class_colours(classes: Sequence[int]) -> dict[int, Any]:
    import matplotlib as mpl

    if len(classes) > 20:
        return dict(zip(classes, mpl.colormaps["hsv"](np.linspace(0, 0.92, len(classes))), strict=True))
    colours = mpl.colormaps["tab10" if len(classes) <= 10 else "tab20"]
    return {label: colours(place) for place, label in enumerate(classes)}


def new_figure(path: Path, width: float, height: float) -> Figure:
    """An empty figure; the suffix of `path` must be one of `FORMATS`."""
    if path.suffix.lower() not in FORMATS:
        raise SettingError(
            f"--output: {path.name!r} is not a figure file; expected a name that ends in {', '.join(FORMATS)}"
        )
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: Path) -> Path:
    """Style all panels alike and write the file."""
    for axes in figure.axes:
        if axes.get_xticks().size:
            axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    return write_figure(figure, path)


def write_figure(figure: Figure, path: Path, dpi: int = 150) -> Path:
    """Write the figure without further styling."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=dpi)
    except OSError as error:
        raise SettingError(f"{path}: cannot be written ({reason_of(error)}); choose another file") from error
    return path


def _band(axes: Axes, label: str, series: Sequence[dict[int, float]]) -> None:
    rounds = sorted(set().union(*series))
    if not rounds:
        axes.plot([], [], label=label)  # so that both panels use the same colours
        return
    values: NDArray[np.float64] = np.array([[one.get(r, np.nan) for r in rounds] for one in series])
    mean = np.nanmean(values, axis=0)
    (line,) = axes.plot(rounds, mean, label=label, linewidth=1.6)
    if len(series) > 1:
        std = np.nanstd(values, axis=0)
        axes.fill_between(rounds, mean - std, mean + std, color=line.get_color(), alpha=0.15, linewidth=0)
