"""The privacy budget: the epsilon spent so far, and whether another round fits into it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fedl2g.privacy.mechanism import Mechanism
from fedl2g.round.policy import Policy, State
from fedl2g.round.record import RoundRecord


class Ledger(Policy):
    """Accounting for experiments without a privacy guarantee: does nothing."""

    def reason_to_stop(self, round: int, plan: Sequence[int]) -> str | None:
        """Why a round with these participants must not be run; None if it may."""
        return None

    def spend(self, round: int, plan: Sequence[int]) -> None:
        """Account for a round with these participants."""


class PrivacyLedger(Ledger):
    """Counts rounds and participations, and computes the epsilon they spent."""

    def __init__(self, mechanism: Mechanism, *, uploads: bool) -> None:
        self.mechanism = mechanism
        self.uploads = uploads  # without uploads nothing is spent
        self._rounds = 0
        self._participations: Counter[int] = Counter()
        mechanism.epsilon(1, 1)  # fail now, not after the first round, if the accountant is not installed

    def reason_to_stop(self, round: int, plan: Sequence[int]) -> str | None:
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
                "simulated": float(self.mechanism.simulated),
            }

    def state_dict(self) -> State:
        return {}, {"rounds": self._rounds, "participations": sorted(self._participations.items())}

    def load_state_dict(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        self._rounds = int(values["rounds"])
        self._participations = Counter({int(client): int(count) for client, count in values["participations"]})
