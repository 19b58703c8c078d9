"""The record of a round (imports no torch, so that commands that read runs start fast)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ConfigDict, TypeAdapter

MB = 2**20

_STRICT: ConfigDict = {"extra": "forbid", "allow_inf_nan": False}  # records are read back from files


@dataclass
class Accuracy:
    """Accuracy of the clients on their own test sets."""

    __pydantic_config__ = _STRICT

    pooled: float  # correct / samples over all clients: the headline number
    mean: float  # over clients
    std: float
    clients: dict[int, float]
    others: dict[str, float] = field(default_factory=dict)  # pooled accuracy of a method's further predictors


@dataclass
class RoundRecord:
    """What happened in one round (round 0: the evaluation before the first)."""

    __pydantic_config__ = _STRICT

    round: int
    participants: list[int] = field(default_factory=list)
    accuracy: Accuracy | None = None  # None in rounds without evaluation
    loss: float | None = None  # cross entropy alone, mean over the clients that trained
    client_losses: dict[int, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)  # the clients' own numbers, mean over those that sent one
    client_metrics: dict[str, dict[int, float]] = field(default_factory=dict)
    up_bytes: int = 0
    down_bytes: int = 0
    client_seconds: float = 0.0  # summed over participants
    server_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    profile_seconds: dict[str, float] = field(default_factory=dict)  # seconds by phase, with `execution.profile`
    refused: dict[int, str] = field(default_factory=dict)
    missing: dict[int, str] = field(default_factory=dict)  # participants without a reply, and why
    server: dict[str, float] = field(default_factory=dict)  # the method's own numbers
    privacy: dict[str, float] = field(default_factory=dict)  # epsilon spent so far, its delta, the noise multiplier
    hostile: list[int] = field(default_factory=list)  # simulated: participants that attacked
    away: dict[int, str] = field(default_factory=dict)  # simulated: clients that were away or did not reply, and why
    late: dict[int, int] = field(default_factory=dict)  # simulated: replies used now, and the round they belong to

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` reads them back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RoundRecord:
        """Inverse of `to_dict`, also after JSON made strings of the client numbers; ValueError if malformed."""
        record: RoundRecord = _reader(cls).validate_python(values)  # type: ignore[arg-type]
        if not 0 <= record.round < 2**53:
            raise ValueError(f"round: {record.round} is out of range")
        return record


def best_record(history: Sequence[RoundRecord]) -> RoundRecord | None:
    """The first record with the highest pooled accuracy."""
    evaluated = [record for record in history if record.accuracy is not None]
    return max(evaluated, key=lambda r: r.accuracy.pooled if r.accuracy else 0.0, default=None)


@functools.cache
def _reader(kind: type) -> TypeAdapter[Any]:
    """A validator of records read from files: names, types, finite numbers."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
