"""The privacy budget: what the uploads so far have spent, and whether one more round may be played."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fedl2g.privacy.mechanism import Mechanism
from fedl2g.round.policy import Policy, State
from fedl2g.round.record import RoundRecord


class Ledger(Policy):
    """Keeps account; without a guarantee there is nothing to keep."""

    def objection(self, round: int, plan: Sequence[int]) -> str | None:
        """Why a round with these participants may not be played."""
        return None

    def spend(self, round: int, plan: Sequence[int]) -> None:
        """A round with these participants was played."""


class PrivacyLedger(Ledger):
    """Counts rounds and participations, and says what epsilon they spent."""

    def __init__(self, mechanism: Mechanism, *, uploads: bool) -> None:
        self.mechanism = mechanism
        self.uploads = uploads  # a method that sends nothing spends nothing
        self._rounds = 0
        self._participations: Counter[int] = Counter()
        mechanism.epsilon(1, 1)  # what the accountant lacks is said now, not after the first round

    def objection(self, round: int, plan: Sequence[int]) -> str | None:
        limit = self.mechanism.settings.max_epsilon
        if limit is None or self._epsilon(round, self._participations + Counter(plan)) <= limit:
            return None
        return "the privacy budget is spent"

    def spend(self, round: int, plan: Sequence[int]) -> None:
        self._rounds = round
        self._participations.update(plan)

    def _epsilon(self, rounds: int, participations: Counter[int]) -> float:
        return self.mechanism.epsilon(rounds, max(participations.values(), default=0)) if self.uploads else 0.0

    def write(self, record: RoundRecord, asked: Sequence[int]) -> None:
        if record.round:
            record.privacy = {
                "epsilon": self._epsilon(self._rounds, self._participations),
                "delta": self.mechanism.settings.delta,
                "noise_multiplier": self.mechanism.noise_multiplier,
            }

    def state_dict(self) -> State:
        return {}, {"rounds": self._rounds, "participations": sorted(self._participations.items())}

    def load_state_dict(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        self._rounds = int(values["rounds"])
        self._participations = Counter({int(client): int(count) for client, count in values["participations"]})
