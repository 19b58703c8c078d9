"""Charts of a partition (samples by client and class): as text, or as a bubble chart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedl2g.data.partition import Partition
from fedl2g.report.figures import new_figure, write_figure

COLOUR = "#2a6f97"
SMALLEST_AREA = 1.0
"""In square points, so that a single sample of a large dataset stays visible."""
_SIZES = " ·•●"
_MAX_COLUMNS = 60


def bubble_table(partition: Partition, labels: NDArray[Any], classes: int) -> str:
    """The bubble chart as text: a row per client with its sizes, and a dot per class that grows with its samples.

    A dot's size shows the count relative to the largest in the table: up to a tenth, up to a half, above. If there are
    more classes than fit on a line, neighbouring classes share a dot.
    """
    counts = partition.counts(labels, classes)
    per_column = -(-classes // _MAX_COLUMNS)
    columns = np.add.reduceat(counts, np.arange(0, classes, per_column), axis=1)
    largest = max(int(columns.max()), 1)
    width = max(len(str(partition.clients - 1)), len("client"))
    title = "class" if per_column == 1 else f"class ({per_column} to a dot)"
    lines = [f"{'client':>{width}}  {'train':>6}  {'test':>6}  {'classes':>7}  {title}"]
    for client in range(partition.clients):
        sizes = np.ceil(columns[client] / largest * 10).astype(int)
        dots = "".join(_SIZES[0 if size == 0 else 1 if size <= 1 else 2 if size <= 5 else 3] for size in sizes)
        train, test = len(partition.train[client]), len(partition.test[client])
        held = int(np.count_nonzero(counts[client]))
        lines.append(f"{client:>{width}}  {train:>6}  {test:>6}  {held:>7}  {dots}".rstrip())
    return "\n".join(lines)


def draw_bubbles(
    partition: Partition, labels: NDArray[Any], classes: int, path: Path, title: str | None = None
) -> None:
    """Draw the client x class chart of the paper's appendix; a circle's area is the number of samples.

    The suffix of `path` decides the format: .png, .pdf or .svg.
    """
    counts = partition.counts(labels, classes)
    clients = partition.clients
    width = float(np.clip(2.4 + 0.3 * clients, 4.4, 16.0))
    height = float(np.clip(1.2 + 0.3 * classes, 3.2, 8.0))
    figure = new_figure(path, width, height)
    axes = figure.add_subplot()
    # The largest circle fills a grid cell, but stays visible where many classes make the cells flat.
    cell = 72 * min(0.9 * width / clients, max(0.9 * height / classes, 0.18))
    area_of_a_sample = cell**2 / max(int(counts.max()), 1)
    client_ids, class_ids = np.nonzero(counts)
    circles = axes.scatter(
        client_ids,
        class_ids,
        s=np.maximum(counts[client_ids, class_ids] * area_of_a_sample, SMALLEST_AREA),
        color=COLOUR,
        alpha=0.8,
        edgecolors="white",
        linewidths=0.2,
    )
    axes.set_xlabel("client")
    axes.set_ylabel("class")
    axes.set_xlim(-0.7, clients - 0.3)
    axes.set_ylim(-0.7 - classes / 60, classes - 0.3 + classes / 60)
    axes.set_xticks(_ticks(clients))
    axes.set_yticks(_ticks(classes))
    axes.set_axisbelow(True)
    axes.grid(color="0.92", linewidth=0.6)
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    handles, texts = circles.legend_elements(
        "sizes", num=3, color=COLOUR, alpha=0.8, func=lambda area: np.asarray(area) / area_of_a_sample
    )
    axes.legend(
        handles,
        texts,
        title="samples",
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        frameon=False,
        fontsize=8,
        title_fontsize=8,
        labelspacing=max(1.0, cell / 8),
        handletextpad=max(1.0, cell / 16),
    )
    if title:
        axes.set_title(title, fontsize=11)
    write_figure(figure, path, dpi=200)


def _ticks(count: int) -> range:
    """Every id if they fit, else every second, fifth, tenth and so on."""
    steps = (digit * 10**power for power in range(9) for digit in (1, 2, 5))
    return range(0, count, next(step for step in steps if count / step <= 25))
