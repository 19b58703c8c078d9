"""The result of a comparison for scripts and notebooks."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fedl2g.api.result import Result, with_directory
from fedl2g.runs.comparison import Comparison
from fedl2g.runs.result import aggregate

if TYPE_CHECKING:
    from pandas import DataFrame

    from fedl2g.report.charts.parts import Panels


class ComparedMethods:
    """The runs of several methods and seeds, and how the methods compare."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison

    def __repr__(self) -> str:
        methods = ", ".join(label for label, results in self.results.items() if results)
        return f"<fedl2g comparison of {methods} in {self.directory}>"

    @property
    def directory(self) -> Path:
        """The folder of all runs."""
        return self._comparison.directory

    @cached_property
    def results(self) -> dict[str, list[Result]]:
        """The results by method, one for each seed."""
        return {
            label: [with_directory(result) for result in sorted(found, key=lambda result: result.seed)]
            for label, found in self._comparison.results.items()
        }

    @cached_property
    def table(self) -> DataFrame:
        """One row a method in the given order: the mean of each number over seeds, and its deviation (`..._std`)."""
        import pandas as pd

        rows = {}
        for label, found in self._comparison.results.items():
            if found:
                numbers = aggregate(found).items()
                rows[label] = {"seeds": len(found)} | {
                    key: value for name, (mean, std) in numbers for key, value in ((name, mean), (f"{name}_std", std))
                }
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("method").dropna(axis="columns", how="all")

    @cached_property
    def verdicts(self) -> DataFrame:
        """One row a method: the difference against the reference with its 95 % interval, and a sentence."""
        from fedl2g.api.frames import verdicts_frame

        return verdicts_frame(self._comparison.differences)

    def plot(self, figure: str = "curves", file: Path | str | None = None) -> Panels:
        """A figure of all runs as an altair chart, which notebooks show; also written to `file` (PNG, SVG, PDF)."""
        from fedl2g.api.pictures import draw

        return draw(self._paths, figure, file)

    def report(self, file: Path | str = "report.html", *, title: str = "") -> Path:
        """Write the report of all runs, one HTML file that needs nothing else."""
        from fedl2g.api.pictures import write_page

        return write_page(self._paths, file, title)

    @property
    def _paths(self) -> list[Path]:
        return [Path(result.run) for found in self._comparison.results.values() for result in found]
