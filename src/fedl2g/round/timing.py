"""Measures where the time of a round goes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from fedl2g.learning.profiling import split_round
from fedl2g.methods.base import Report
from fedl2g.round.policy import Policy
from fedl2g.round.record import RoundRecord


class Timing(Policy):
    """Sums the seconds of the server, the clients and the evaluation; with `profile`, splits them by phase.

    `lanes` is how many clients can train at the same time.
    """

    def __init__(self, profile: bool, lanes: int) -> None:
        self.profile = profile
        self.lanes = lanes
        self.start()

    def start(self) -> None:
        """Reset at the start of a round."""
        self._started = time.perf_counter()
        self._seconds = {"server": 0.0, "evaluation": 0.0}
        self._clients: list[tuple[float, dict[str, float]]] = []  # seconds of each, in total and by phase

    def server(self) -> AbstractContextManager[None]:
        """Measure work of the server."""
        return self._measured("server")

    def evaluation(self) -> AbstractContextManager[None]:
        """Measure an evaluation."""
        return self._measured("evaluation")

    @contextmanager
    def _measured(self, part: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[part] += time.perf_counter() - started

    def client(self, report: Report) -> None:
        """Add the training time that a client reports."""
        self._clients.append((report.seconds, report.laps))

    def write(self, record: RoundRecord, asked: Sequence[int]) -> None:
        record.server_seconds = self._seconds["server"]
        record.client_seconds = sum(seconds for seconds, _ in self._clients)
        record.replied = sum(seconds > 0 for seconds, _ in self._clients)
        record.evaluation_seconds = self._seconds["evaluation"]
        if self.profile and record.round:
            record.profile_seconds = split_round(
                self._clients,
                wall=time.perf_counter() - self._started,
                server=self._seconds["server"],
                evaluation=self._seconds["evaluation"],
                lanes=self.lanes,
            )
