"""Figures of runs in files (PNG, PDF, SVG): the charts of the page, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from fedl2g.errors import SettingError
from fedl2g.report import drawings
from fedl2g.report.charts import clients as client_charts
from fedl2g.report.charts.parts import OWN_LEGENDS, Panels, beside
from fedl2g.report.charts.render import FORMATS, check_format, write_chart
from fedl2g.report.charts.theme import Look
from fedl2g.report.clients import Compared, accuracy_rows, architecture_rows, compare_groups, difference_rows
from fedl2g.report.collect import Group, partition_counts
from fedl2g.report.increase import loss_increase
from fedl2g.report.presence import presence
from fedl2g.report.series import metric_names
from fedl2g.runs.verdicts import DEFAULT_REFERENCE

__all__ = ["FIGURES", "FORMATS", "check_format", "figure", "write_figure"]


def write_figure(name: str, groups: Sequence[Group], path: Path) -> Path:
    """Draw one of `FIGURES` to a file; the suffix of `path` decides the format."""
    check_format(path)  # before any work
    return write_chart(figure(name, groups), drawings.look_of(groups), path)


def figure(name: str, groups: Sequence[Group]) -> Panels:
    """One of `FIGURES` as an altair chart, which notebooks show."""
    return FIGURES[name](groups, drawings.look_of(groups))


def _curves(groups: Sequence[Group], look: Look) -> Panels:
    """Accuracy, original local loss, and the clients' own numbers over rounds."""
    panels = [
        drawings.accuracy(groups, look, title="Test accuracy (pooled over clients)"),
        drawings.loss(groups, look, title="Original local loss (cross entropy)"),
        *(drawings.metric(groups, look, name, title=name.capitalize()) for name in metric_names(groups)),
    ]
    return beside(panels)


def _loss_increase(groups: Sequence[Group], look: Look) -> Panels:
    """The figure of the paper's introduction: per-round loss increase with accuracies, and the loss beside local's."""
    found = loss_increase(groups)
    named = [Group(_with_accuracy(group.label, found["accuracy"]), group.runs) for group in groups]
    styles = dict(zip((group.label for group in named), look.styles.values(), strict=True))
    title = "Original local loss minus its earlier minimum (and best test accuracy)"
    panels = [drawings.loss_per_round(named, Look(styles), title=title)]
    if found["relative"]:
        title = "Original local loss minus local training's"
        panels.append(drawings.loss_against_local(groups, look.only(found["relative"]), title=title))
    return beside(panels, own_legends=True)


def _with_accuracy(label: str, accuracies: Mapping[str, Any]) -> str:
    mean = accuracies.get(label, {}).get("mean")
    return label if mean is None else f"{label} ({mean:.1%})"


def _communication(groups: Sequence[Group], look: Look) -> Panels:
    """Megabytes per round by method (all participants), and seconds of a client and of the server."""
    return beside(
        [
            drawings.communication(groups, look, title="Communication per round"),
            drawings.computation(groups, look, title="Computation per round"),
        ],
        own_legends=True,
    )


def _verdicts(groups: Sequence[Group], look: Look) -> Panels:
    """The accuracy of every method, and its difference to local training with its interval."""
    compared = _compared(groups, "verdicts")
    return beside(
        [
            drawings.best_accuracies(groups, look, title="Test accuracy"),
            drawings.verdicts(
                groups, compared, _rivals(look, compared), title=f"Difference to {drawings.reference_name(compared)}"
            ),
        ]
    )


def _clients(groups: Sequence[Group], look: Look) -> Panels:
    """The accuracy of every client; with local training also whom a method helped, by architecture and by size."""
    panels = [client_charts.spread(accuracy_rows(groups), look, title="Accuracy of individual clients")]
    compared = compare_groups(groups)
    if not compared:
        return beside(panels)
    name, rivals = drawings.reference_name(compared), _rivals(look, compared)
    rows = difference_rows(groups, compared)
    panels.append(client_charts.differences(rows, rivals, against=name, title="Clients helped and harmed"))
    below = []
    if by_kind := architecture_rows(rows):
        below.append(client_charts.by_group(by_kind, rivals, against=name, title="By architecture"))
    if len({row["samples"] for row in rows} - {None}) > 1:
        below.append(client_charts.by_size(rows, rivals, against=name, title="By size"))
    above = beside(panels, own_legends=True)
    return alt.vconcat(above, beside(below, own_legends=True), resolve=OWN_LEGENDS) if below else above


def _tsne(groups: Sequence[Group], look: Look) -> Panels:
    """t-SNE of the server's class vectors with the clients' class means and features, a panel per method."""
    from fedl2g.report.embedding import embed, embeddable

    found = {group.label: value for group in embeddable(groups) if (value := embed(group.runs[0])) is not None}
    if not found:
        raise SettingError(
            "tsne: nothing to draw; expected a run whose server sends class vectors (such as fedl2g-f), with its "
            "checkpoints and its dataset in the local cache"
        )
    seeds = {group.label: group.runs[0].seed for group in groups}
    return beside(
        [
            drawings.plane(
                value, look, title=f"{label} ({value['space']}, round {value['round']}, seed {seeds[label]})"
            )
            for label, value in found.items()
        ]
    )


def _bubbles(groups: Sequence[Group], look: Look) -> Panels:
    """Who holds how many samples of which class, in the first run."""
    run = groups[0].runs[0]
    values = {} if run.directory.deployed else partition_counts(run)
    if not values or values["counts"] is None:
        raise SettingError(
            f"dataset: {run.settings['dataset']!r} is not in the local cache; load it with `fedl2g data show`"
        )
    title = f"{values['dataset']}, {run.settings['partition']}, seed {run.seed}"
    return drawings.partition(values, look, title=title)


def _availability(groups: Sequence[Group], look: Look) -> Panels:
    """Who took part in which round, in the first run."""
    run = groups[0].runs[0]
    grid = presence(run.history, int(run.settings["clients"]))
    if not grid or not grid[0]:
        raise SettingError("availability: nothing to draw; expected a run with at least one round")
    return drawings.availability(grid, look, title=f"Client availability, {groups[0].label}, seed {run.seed}")


FIGURES: Mapping[str, Callable[[Sequence[Group], Look], Panels]] = {
    "curves": _curves,
    "verdicts": _verdicts,
    "clients": _clients,
    "loss-increase": _loss_increase,
    "communication": _communication,
    "tsne": _tsne,
    "bubbles": _bubbles,
    "availability": _availability,
}


def _compared(groups: Sequence[Group], name: str) -> list[Compared]:
    found = compare_groups(groups)
    if not found:
        raise SettingError(
            f"{name}: nothing to compare; expected runs of two methods on the same data and seeds, one of them "
            f"`{DEFAULT_REFERENCE}` to see whether the other helped"
        )
    return found


def _rivals(look: Look, compared: Sequence[Compared]) -> Look:
    """The look of charts without the references."""
    return look.only(one.method for found in compared for one in found.differences)
