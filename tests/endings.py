"""Observers that end a run after a round, in order or not."""

from __future__ import annotations

from fedl2g.federation import Federation, Observer
from fedl2g.round.record import RoundRecord


class StopAfter(Observer):
    """Asks for an orderly end after a round, as Ctrl-C does."""

    def __init__(self, round: int, reason: str = "the test stopped it") -> None:
        self.round = round
        self.reason = reason

    def on_round(self, federation: Federation, record: RoundRecord) -> None:
        if record.round == self.round:
            federation.stop(self.reason)


class RaiseAfter(Observer):
    """Ends a run abruptly after a round."""

    def __init__(self, round: int, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.round = round
        self.error = error

    def on_round(self, federation: Federation, record: RoundRecord) -> None:
        if record.round == self.round:
            raise self.error
