"""The base class of policies: a part of the round with its own state and its part of the record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fedl2g.round.record import RoundRecord

State = tuple[dict[str, Tensor], dict[str, Any]]  # tensors, and values that JSON can hold


class Policy:
    """One part of a round; stateless unless `state_dict` is overridden."""

    def write(self, record: RoundRecord, asked: Sequence[int]) -> None:
        """Write this policy's part of the record of a round in which these clients were asked to train."""

    def state_dict(self) -> State:
        """The state from which the policy can be resumed."""
        return {}, {}

    def load_state_dict(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Restore a `state_dict()`; ValueError, KeyError or TypeError if it is malformed."""
