"""The observers of every run: metrics, checkpoints, early stopping, Ctrl-C."""

from __future__ import annotations

import time

from fedl2g.federation import Federation, Observer
from fedl2g.round.record import RoundRecord, selected_record
from fedl2g.runs.best import BestModels
from fedl2g.runs.checkpoint import checkpoint_path, write_checkpoint
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.estimate import duration


class MetricsWriter(Observer):
    """Appends each round's record to the run's metrics."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run

    def on_start(self, federation: Federation) -> None:
        self.run.records.restore(federation.history)

    def on_round(self, federation: Federation, record: RoundRecord) -> None:
        self.run.records.append(record)


class EarlyStop(Observer):
    """Stops the run after `patience` evaluations without a new best one; those of the warm-up do not count."""

    def __init__(self, patience: int, warmup_rounds: int = 0) -> None:
        self.patience = patience
        self.warmup_rounds = warmup_rounds

    def on_start(self, federation: Federation) -> None:
        self._check(federation)

    def on_round(self, federation: Federation, record: RoundRecord) -> None:
        self._check(federation)

    def _check(self, federation: Federation) -> None:
        best = selected_record(federation.history)
        if not self.patience or best is None:
            return
        # No model changes in the warm-up: its evaluations repeat that of round 0 and say nothing about convergence.
        start = max(best.round, self.warmup_rounds)
        since = sum(record.accuracy is not None and record.round > start for record in federation.history)
        if since >= self.patience:
            federation.stop("stopped early")


class Checkpointer(Observer):
    """Writes a checkpoint before the first round, every `every` rounds, and at the end, with the best models if any."""

    def __init__(self, run: RunDirectory, every: int, best: BestModels | None = None) -> None:
        self.run = run
        self.every = every
        self.best = best
        self.written: int | None = None

    def on_start(self, federation: Federation) -> None:
        self.written = federation.round if federation.history else None
        if self.best is not None:
            restored = checkpoint_path(self.run.checkpoints, federation.round) if federation.history else None
            self.best.restore(restored)

    def on_round(self, federation: Federation, record: RoundRecord) -> None:
        if self.best is not None:
            self.best.offer(federation, record)
        if record.round % self.every == 0:
            self._write(federation)

    def on_end(self, federation: Federation) -> None:
        if self.written != federation.round:
            self._write(federation)

    def _write(self, federation: Federation) -> None:
        path = write_checkpoint(self.run.checkpoints, federation, self.best.write if self.best is not None else None)
        self.written = federation.round
        if self.best is not None:
            self.best.restore(path)


class StopOnInterrupt(Observer):
    """Ends the run after the current round, with a checkpoint, once `press` was called."""

    REASON = "interrupted"

    def __init__(self) -> None:
        self._federation: Federation | None = None
        self._pressed = False
        self._round: tuple[float, float | None] = (0.0, None)  # when it began, and the duration of the previous one

    def message(self) -> str:
        """When the run will end after Ctrl-C."""
        began, took = self._round
        left = 0.0 if took is None else took - (time.monotonic() - began)
        when = f", in about {duration(left)}," if left >= 1 else ""
        return f"stopping after this round{when or ','} with a checkpoint"

    def press(self) -> None:
        """The user pressed Ctrl-C."""
        self._pressed = True
        if self._federation is not None:
            self._federation.stop(self.REASON)

    def on_round(self, federation: Federation, record: RoundRecord) -> None:
        now = time.monotonic()
        self._round = (now, now - self._round[0] if record.round else None)

    def on_start(self, federation: Federation) -> None:
        self._federation = federation
        self._round = (time.monotonic(), None)
        if self._pressed:  # before the first round, or before a lost worker reset the federation
            federation.stop(self.REASON)
