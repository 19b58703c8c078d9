"""A policy: a part of the round with a state of its own and its part of the record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fedl2g.round.record import RoundRecord

State = tuple[dict[str, Tensor], dict[str, Any]]  # tensors, and values that JSON can hold


class Policy:
    """What every policy answers; most have nothing to remember from round to round."""

    def write(self, record: RoundRecord, asked: Sequence[int]) -> None:
        """Write this policy's part of the record of a round in which these clients were asked to train."""

    def state_dict(self) -> State:
        """What must be known to go on after an interruption."""
        return {}, {}

    def load_state_dict(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Go on from `state_dict()`; ValueError, KeyError or TypeError if it is none."""
