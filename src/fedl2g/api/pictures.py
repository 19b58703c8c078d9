"""Figures and reports of runs, for the results of the Python interface."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedl2g.api.arguments import path_given
from fedl2g.errors import SettingError, choices, shown
from fedl2g.report.charts.parts import Panels
from fedl2g.report.charts.render import check_format, specification, write_chart
from fedl2g.report.collect import group_runs, read_runs
from fedl2g.report.drawings import look_of
from fedl2g.report.figures import FIGURES
from fedl2g.report.page import write_report


def draw(runs: Sequence[Path], figure: str, file: Path | str | None) -> Panels:
    """One of `FIGURES` of these runs, and its file if one is wanted."""
    if figure not in FIGURES:
        raise SettingError(f"figure: {shown(figure)} is not known; {choices(str(figure), FIGURES)}")
    target = None if file is None else path_given(file, "file")
    if target is not None:
        check_format(target)  # before any work
    groups = group_runs(read_runs(runs, trust=True))
    look = look_of(groups)
    chart = FIGURES[figure](groups, look)
    if target is not None:
        write_chart(chart, look, target)
    return type(chart).from_dict(specification(chart, look))


def write_page(runs: Sequence[Path], file: Path | str, title: str) -> Path:
    """Write the report of these runs; t-SNE, which takes longest, is left to the command."""
    return write_report(runs, path_given(file, "file"), title=title, tsne=False, trust=True)
