"""The result of a run for scripts and notebooks: numbers, DataFrames, trained networks, pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fedl2g.api.frames import clients_frame, history_frame
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.result import RunResult

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Result(RunResult):
    """The result of a run; everything beyond the numbers is read from its directory when it is asked for."""

    @classmethod
    def of(cls, result: RunResult) -> Result:
        """The same numbers with access to the run's directory."""
        return cls(**result.to_dict())

    @property
    def directory(self) -> Path:
        """The run's directory."""
        return Path(self.run)

    @cached_property
    def history(self) -> DataFrame:
        """A DataFrame with one row a round."""
        return history_frame(self._run.history())

    @cached_property
    def clients(self) -> DataFrame:
        """A DataFrame with one row a client."""
        partition = self._run.partition()
        about = self._run.about()
        sizes = {
            "train_samples": [len(indices) for indices in partition.train],
            "test_samples": [len(indices) for indices in partition.test],
        }
        return clients_frame(self._run.history(), about["architectures"], sizes)

    @property
    def _run(self) -> RunDirectory:
        return RunDirectory(self.directory)
