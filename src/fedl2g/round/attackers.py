"""Records which clients attacked; the attack itself is a stage of their uploads."""

from __future__ import annotations

from collections.abc import Sequence

from fedl2g.round.policy import Policy
from fedl2g.round.record import RoundRecord


class Attackers(Policy):
    """Lists the attackers among the clients that were asked to train."""

    def __init__(self, hostile: frozenset[int]) -> None:
        self.hostile = hostile

    def write(self, record: RoundRecord, asked: Sequence[int]) -> None:
        record.hostile = [client for client in asked if client in self.hostile]
