"""The record of a round (imports no torch, so that commands that read runs start fast)."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pydantic import ConfigDict, TypeAdapter

MB = 2**20
LARGEST = 1e100  # of a number in a file: sums of such numbers are finite
Selection = Literal["validation", "test"]
Guarantee = Literal["simulated", "secret noise"]

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
    samples: dict[int, int] = field(default_factory=dict)  # test samples of each client
    validation: float | None = None  # correct / samples over all clients' validation samples; None without any
    balanced: float | None = None  # balanced accuracy, mean over clients
    macro_f1: float | None = None  # macro-averaged F1, mean over clients
    balanced_clients: dict[int, float] = field(default_factory=dict)  # of each client, four decimals
    macro_f1_clients: dict[int, float] = field(default_factory=dict)

    @property
    def counts(self) -> dict[int, tuple[int, int]]:
        """Each client's correct predictions and test samples: exact, since a quotient of two counts gives them back.

        `selected_record(run.history()).accuracy.counts` are the counts of a run directory in its best round.
        """
        return {client: (round(self.clients[client] * n), n) for client, n in self.samples.items()}

    @property
    def deciding(self) -> float:
        """The number by which the best round is chosen: validation accuracy if there is one, else test accuracy."""
        return self.pooled if self.validation is None else self.validation


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
    client_seconds: float = 0.0  # training, summed over the clients that replied
    replied: int = 0  # the clients whose seconds these are
    server_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    profile_seconds: dict[str, float] = field(default_factory=dict)  # seconds by phase, with `execution.profile`
    refused: dict[int, str] = field(default_factory=dict)
    missing: dict[int, str] = field(default_factory=dict)  # participants without a reply, and why
    server: dict[str, float] = field(default_factory=dict)  # the method's own numbers
    privacy: dict[str, float] = field(
        default_factory=dict
    )  # epsilon so far, delta, noise multiplier, simulated (0 or 1)
    hostile: list[int] = field(default_factory=list)  # simulated: participants that attacked
    away: dict[int, str] = field(default_factory=dict)  # simulated: clients that were away or did not reply, and why
    late: dict[int, int] = field(default_factory=dict)  # simulated: replies used now, and the round they belong to

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` reads them back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RoundRecord:
        """Inverse of `to_dict`, also after JSON made strings of the client numbers; ValueError if malformed."""
        require_bounded(values)
        record: RoundRecord = _reader(cls).validate_python(values)  # type: ignore[arg-type]
        if not 0 <= record.round < 2**53:
            raise ValueError(f"round: {record.round} is out of range")
        return record


def require_bounded(values: object) -> None:
    """Raise ValueError for a number so large that computing with it fails, anywhere in these values from a file."""
    found = [values]
    for value in found:  # grows as tables and lists are opened
        if isinstance(value, dict):
            found += [*value.keys(), *value.values()]
        elif isinstance(value, list):
            found += value
        elif isinstance(value, int | float) and abs(value) > (2**53 if isinstance(value, int) else LARGEST):
            raise ValueError("a number is out of range")


def seconds_per_client(records: Iterable[RoundRecord]) -> float | None:
    """The seconds that a client trains in one of these rounds, mean over clients and rounds; None if no client did.

    The only definition of client seconds in tables, figures and results; give it the rounds after the warm-up.
    """
    trained = [record for record in records if record.participants]
    # Records without the number of replies: all participants.
    clients = sum(record.replied or len(record.participants) for record in trained)
    return sum(record.client_seconds for record in trained) / clients if clients else None


def selected_record(history: Sequence[RoundRecord]) -> RoundRecord | None:
    """The record of the best round: the first with the highest validation accuracy, or test accuracy without one.

    The only function that chooses a round: for results, early stopping and the kept model.
    """
    evaluated = [record for record in history if record.accuracy is not None]
    return max(evaluated, key=lambda r: r.accuracy.deciding if r.accuracy else 0.0, default=None)


def selection_of(history: Sequence[RoundRecord]) -> Selection:
    """The samples on which the best round of this history is chosen."""
    found = any(r.accuracy is not None and r.accuracy.validation is not None for r in history)
    return "validation" if found else "test"


def guarantee_of(privacy: Mapping[str, float]) -> Guarantee | None:
    """What a record's privacy is worth; None without any. An older record does not say: then it is simulated."""
    if "epsilon" not in privacy:
        return None
    return "simulated" if privacy.get("simulated", 1.0) else "secret noise"


def epsilon_text(epsilon: float, guarantee: Guarantee | None) -> str:
    """A spent epsilon for people to read: labelled, if nobody is protected because the noise is not secret."""
    return f"{epsilon:.3g}" if guarantee == "secret noise" else f"{epsilon:.3g} (simulated)"


def chosen_on(*selections: Selection) -> str:
    """How the best rounds were chosen, in words for tables and pages."""
    return ", ".join(f"best round chosen on {selection} data" for selection in sorted(set(selections)))


@functools.cache
def _reader(kind: type) -> TypeAdapter[Any]:
    """A validator of records read from files: names, types, finite numbers."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
