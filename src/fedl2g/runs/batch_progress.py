"""Progress of several runs: how many are done, the time left, and a line for each run that is under way."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TaskID

from fedl2g.errors import count
from fedl2g.experiment import Experiment
from fedl2g.federation import Federation, Observer
from fedl2g.round.record import RoundRecord
from fedl2g.runs.console import StatusLine
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.estimate import duration
from fedl2g.runs.progress import progress_bar, round_status


@dataclass
class _Run:
    """What is known of one run."""

    method: str
    rounds: int
    round: int = 0  # the last one that is over
    status: str = ""
    over: bool = False
    read: int = 0  # bytes of its metrics
    first: tuple[float, int] | None = None  # when it was first seen under way, and in which round
    last: float = 0.0  # when its last round ended
    task: TaskID | None = None

    @property
    def underway(self) -> bool:
        return self.first is not None and not self.over

    @property
    def pace(self) -> tuple[float, int]:
        """The seconds and rounds that were seen."""
        return (0.0, 0) if self.first is None else (self.last - self.first[0], self.round - self.first[1])

    def see(self, round: int, status: str, now: float) -> None:
        self.round, self.status, self.last = round, status, now
        if self.first is None:
            self.first = (now, round)


class BatchProgress:
    """Shows a batch of runs as bars on a terminal, and as a line from time to time elsewhere."""

    def __init__(self, console: Console, experiments: Mapping[Path, Experiment], jobs: int = 1) -> None:
        self.console = console
        self.jobs = jobs
        self.runs = {path: _Run(one.method.name, one.rounds) for path, one in experiments.items()}
        self._bar: Progress | None = None
        self._overall: TaskID | None = None
        self._line = StatusLine(console)

    def follow(self, path: Path) -> Observer:
        """An observer of a run in this process."""
        return _Follow(self, path)

    def see(self, path: Path, round: int, status: str) -> None:
        """A run has come to the end of this round."""
        self.runs[path].see(round, status, time.monotonic())
        self._show()

    def tick(self) -> None:
        """See what runs in other processes have recorded since the last call."""
        for path, run in self.runs.items():
            if run.over:
                continue
            record, run.read = RunDirectory(path).latest(run.read)
            if record is not None:
                run.see(record.round, round_status([record]), time.monotonic())
        self._show()

    def ended(self, path: Path, text: str) -> None:
        """Print how a run ended, now or before this batch."""
        run = self.runs[path]
        run.over = True
        if self._bar is not None and run.task is not None:
            self._bar.remove_task(run.task)
        number = sum(run.over for run in self.runs.values())
        self.console.print(f"[{number}/{len(self.runs)}] {path.name}: {text}", highlight=False, markup=False)
        self._show()

    def seconds_left(self) -> float | None:
        """An estimate from the pace of each method so far; None before any run has a pace."""
        paces: dict[str, tuple[float, int]] = {}
        for run in self.runs.values():
            seconds, rounds = paces.get(run.method, (0.0, 0))
            paces[run.method] = (seconds + run.pace[0], rounds + run.pace[1])
        total, known = sum(s for s, _ in paces.values()), sum(r for _, r in paces.values())
        if not known:
            return None
        speeds = {method: seconds / rounds if rounds else total / known for method, (seconds, rounds) in paces.items()}
        waiting = [run for run in self.runs.values() if not run.over]
        work = [(run.rounds - run.round) * speeds[run.method] for run in waiting]
        # No run ends before its own rounds are over, however many jobs there are.
        return max(sum(work) / min(self.jobs, len(waiting)), *work) if waiting else 0.0

    def round_seconds(self) -> float:
        """How long the current rounds may still take."""
        now = time.monotonic()
        paces = [(run, *run.pace) for run in self.runs.values() if run.underway]
        return max((seconds / rounds - (now - run.last) for run, seconds, rounds in paces if rounds), default=0.0)

    def close(self) -> None:
        """Remove the display from the terminal."""
        self._line.end(f"{sum(run.over for run in self.runs.values())} of {count(len(self.runs), 'run')} over")
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def summary(self) -> str:
        """Which run of how many is under way, and the time left."""
        over = sum(run.over for run in self.runs.values())
        running = sum(run.underway for run in self.runs.values())
        left = self.seconds_left()
        where = f"run {over + 1} of {len(self.runs)}"
        if running > 1:
            where = f"runs {over + 1} to {over + running} of {len(self.runs)}"
        return where if left is None else f"{where}, about {duration(left)} left"

    def _show(self) -> None:
        if self.console.quiet:
            return
        if self.console.is_terminal:
            self._draw()
        elif not all(run.over for run in self.runs.values()):
            rounds = "; ".join(
                f"{path.name} round {run.round}/{run.rounds}  {run.status}".rstrip()
                for path, run in self.runs.items()
                if run.underway
            )
            self._line.show(f"{self.summary()}: {rounds}")

    def _draw(self) -> None:
        if all(run.over for run in self.runs.values()):
            self.close()
            return
        if self._bar is None:
            self._bar = progress_bar(self.console, times=False)
            self._overall = self._bar.add_task(
                "all runs", total=sum(run.rounds for run in self.runs.values()), status=""
            )
            self._bar.start()
        for path, run in self.runs.items():
            if run.underway and run.task is None:
                run.task = self._bar.add_task(path.name, total=run.rounds, status="")
            if run.underway and run.task is not None:
                self._bar.update(run.task, completed=run.round, status=run.status)
        done = sum(run.rounds if run.over else run.round for run in self.runs.values())
        if self._overall is not None:
            self._bar.update(self._overall, completed=done, status=self.summary())


class _Follow(Observer):
    def __init__(self, batch: BatchProgress, path: Path) -> None:
        self.batch = batch
        self.path = path

    def on_start(self, federation: Federation) -> None:
        self._see(federation)

    def on_round(self, federation: Federation, record: RoundRecord) -> None:
        self._see(federation)

    def _see(self, federation: Federation) -> None:
        self.batch.see(self.path, federation.round, round_status(federation.history))
