"""What follows a run in its directory: metrics, checkpoints, early stop, Ctrl-C."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from fedl2g.federation import Federation, Observer
from fedl2g.round.record import RoundRecord, best_record
from fedl2g.runs.checkpoint import write_checkpoint
from fedl2g.runs.directory import RunDirectory


class MetricsWriter(Observer):
    """Appends each round's record to the run's metrics."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run

    def on_start(self, federation: Federation) -> None:
        written = {record.round: record for record in self.run.history()}
        for record in federation.history:
            if written.get(record.round) != record:  # the metrics file was lost or damaged; the checkpoint knows
                self.run.append(record)

    def on_round(self, federation: Federation, record: RoundRecord) -> None:
        self.run.append(record)


class EarlyStop(Observer):
    """Ends the run when `patience` evaluations have passed since the best one."""

    def __init__(self, patience: int) -> None:
        self.patience = patience

    def on_start(self, federation: Federation) -> None:
        self._judge(federation)

    def on_round(self, federation: Federation, record: RoundRecord) -> None:
        self._judge(federation)

    def _judge(self, federation: Federation) -> None:
        best = best_record(federation.history)
        if not self.patience or best is None:
            return
        since = sum(record.accuracy is not None and record.round > best.round for record in federation.history)
        if since >= self.patience:
            federation.stop("stopped early")


class Checkpointer(Observer):
    """Writes a checkpoint every few rounds, before the first round, and at the end."""

    def __init__(self, run: RunDirectory, every: int) -> None:
        self.run = run
        self.every = every
        self.written: int | None = None

    def on_start(self, federation: Federation) -> None:
        self.written = federation.round if federation.history else None

    def on_round(self, federation: Federation, record: RoundRecord) -> None:
        if record.round % self.every == 0:
            self._write(federation)

    def on_end(self, federation: Federation) -> None:
        if self.written != federation.round:
            self._write(federation)

    def _write(self, federation: Federation) -> None:
        write_checkpoint(self.run.checkpoints, federation)
        self.written = federation.round


class StopOnInterrupt(Observer):
    """Ctrl-C ends the run after the current round, with a checkpoint; a second Ctrl-C ends it at once."""

    REASON = "interrupted"

    def __init__(self) -> None:
        self._previous: Any = None
        self._pressed = False

    def on_start(self, federation: Federation) -> None:
        if self._pressed:  # and then a worker was lost: the federation went back, the wish stands
            federation.stop(self.REASON)
        if threading.current_thread() is not threading.main_thread() or self._previous is not None:
            return

        def handle(number: int, frame: FrameType | None) -> None:
            if self._pressed:
                raise KeyboardInterrupt
            self._pressed = True
            federation.stop(self.REASON)

        self._previous = signal.signal(signal.SIGINT, handle)

    def close(self) -> None:
        """Give Ctrl-C its usual meaning back."""
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
            self._previous = None
