"""Charts of a partition (samples by client and class): as text, or as a bubble chart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedl2g.datasets.partition import Partition

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


def draw_bubbles(partition: Partition, labels: NDArray[Any], names: Sequence[str], path: Path, title: str = "") -> None:
    """Draw the client x class chart of the paper's appendix; `names` are those of all classes.

    The suffix of `path` decides the format: .png, .pdf or .svg.
    """
    from fedl2g.report.charts.render import check_format, write_chart
    from fedl2g.report.charts.theme import Look
    from fedl2g.report.drawings import partition_of_data

    check_format(path)
    write_chart(partition_of_data(partition, labels, names, Look(), title=title), Look(), path)
