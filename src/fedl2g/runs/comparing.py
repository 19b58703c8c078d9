"""Runs the experiments of a comparison with one display of their progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from fedl2g.datasets import Dataset
from fedl2g.errors import FedL2GError
from fedl2g.federation import Observer
from fedl2g.round.record import chosen_on
from fedl2g.runs.batch import STOPPING, run_all
from fedl2g.runs.batch_progress import BatchProgress
from fedl2g.runs.comparison import Comparison
from fedl2g.runs.console import working
from fedl2g.runs.estimate import duration
from fedl2g.runs.plan import PlannedRun, note_failure, write_plan
from fedl2g.setup import load_data


def run_comparison(
    comparison: Comparison,
    console: Console,
    *,
    jobs: int = 1,
    observers: Callable[[Path], Sequence[Observer]] = lambda path: (),
    data: Dataset | None = None,
) -> Dataset:
    """Run what is not finished yet and return the data; a failed run is noted, and the others are run.

    `observers` makes the observers of a run in this process (`jobs` 1).
    """
    if data is None:  # once for all runs, so that a missing dataset is reported before any run starts
        with working(console, "loading data") as tick:
            data = load_data(next(iter(comparison.experiments.values())), tick)
    write_plan(
        comparison.directory,
        [
            PlannedRun(path.name, comparison.labels[path], experiment.seed, experiment.rounds)
            for path, experiment in comparison.experiments.items()
        ],
    )
    batch = BatchProgress(console, comparison.experiments, jobs)

    def watch(path: Path) -> list[Observer]:
        return [batch.follow(path), *observers(path)]

    def failed(path: Path, error: FedL2GError) -> None:
        comparison.failures[path] = error
        note_failure(comparison.directory, path.name, str(error))
        batch.ended(path, "failed")

    def message() -> str:
        left = batch.round_seconds()
        return f"{STOPPING}, in about {duration(left)}" if left >= 1 else STOPPING

    try:
        for path, result in run_all(
            comparison.experiments, jobs=jobs, watch=watch, failed=failed, data=data, tick=batch.tick, message=message
        ):
            comparison.add(path, result)
            note_failure(comparison.directory, path.name, None)
            how = chosen_on(result.selection)
            batch.ended(path, f"best accuracy {result.best_accuracy:.2%}, round {result.best_round} ({how})")
    finally:
        batch.close()
    return data
