"""The result of a run for scripts and notebooks: numbers, DataFrames, trained networks, pictures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.result import RunResult

if TYPE_CHECKING:
    from pandas import DataFrame

    from fedl2g.report.charts.parts import Panels
    from fedl2g.runs.models import TrainedModels


@dataclass(frozen=True, repr=False)
class Result(RunResult):
    """The result of a run; everything beyond the numbers is read from its directory when it is asked for."""

    def __repr__(self) -> str:
        accuracy = f"accuracy {self.best_accuracy:.2%} in round {self.best_round}"
        return f"<fedl2g result of {self.method}: {accuracy}, {self.status}, in {self.run}>"

    @property
    def directory(self) -> Path:
        """The run's directory."""
        return Path(self.run)

    @cached_property
    def history(self) -> DataFrame:
        """A DataFrame with one row a round: accuracy, loss, the method's own numbers, megabytes, seconds."""
        from fedl2g.api.frames import history_frame

        return history_frame(self._run.history())

    @cached_property
    def clients(self) -> DataFrame:
        """A DataFrame with one row a client: its network, its samples, its accuracies."""
        from fedl2g.api.frames import clients_frame

        return clients_frame(self._run)

    @cached_property
    def models(self) -> TrainedModels:
        """The clients' trained networks: `models[3]` is client 3's after the best round, `models.last[3]` the last."""
        from fedl2g.runs.models import TrainedModels

        return TrainedModels(self._run)

    def plot(self, figure: str = "curves", file: Path | str | None = None) -> Panels:
        """A figure of the run as an altair chart, which notebooks show; also written to `file` (PNG, SVG, PDF)."""
        from fedl2g.api.pictures import draw

        return draw([self.directory], figure, file)

    def report(self, file: Path | str = "report.html", *, title: str = "") -> Path:
        """Write the report of the run, one HTML file that needs nothing else."""
        from fedl2g.api.pictures import write_page

        return write_page([self.directory], file, title)

    @property
    def _run(self) -> RunDirectory:
        return RunDirectory(self.directory, trusted=True)


def with_directory(result: RunResult) -> Result:
    """The same numbers with access to the run's directory, whose code is the caller's own."""
    return Result(**result.to_dict())
