"""What a method is made of: options, a server half and a client half."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Literal, TypeVar

from torch import Tensor

from fedl2g.learning.client import Client, Task
from fedl2g.methods.options import Options
from fedl2g.payload import Payload, Specification, check_payload, tensors_spec
from fedl2g.round.rules import combine_by_class, combine_payloads

__all__ = ["ClientHalf", "Options", "Reply", "Report", "ServerHalf"]


@dataclass(frozen=True)
class Report:
    """What a client says of its round beside the payload: numbers for the records, no data."""

    samples: int  # the size of its train set
    steps: int = 0
    loss: float | None = None  # cross entropy alone, mean over the round's batches
    seconds: float = 0.0
    laps: dict[str, float] = field(default_factory=dict)  # where they went, if that is measured


@dataclass(frozen=True)
class Reply:
    """One client's answer in one round."""

    client: int
    payload: Payload
    report: Report = field(compare=False)
    weight: float = 1.0  # the server's own: below 1 for a reply that comes rounds late


Uploads = Literal["nothing", "class vectors", "network", "other"]
OptionsT = TypeVar("OptionsT", bound=Options)


class ServerHalf(Generic[OptionsT]):
    """The server's side of a method: what it sends, and what it does with the replies.

    Everything that changes over rounds is a tensor in `state_dict()`, so that a run can be resumed.
    """

    # What replies are, if `aggregate` uses them through `combine_by_class` or `combine` alone: then they can be
    # protected by differential privacy. "other" can not.
    uploads: ClassVar[Uploads] = "other"

    def __init__(self, options: OptionsT, task: Task) -> None:
        self.options = options
        self.task = task

    def broadcast(self, round: int) -> Payload:
        """What every participant of the round receives."""
        return {}

    def expected(self) -> Specification:
        """What a reply must look like; anything else is refused before `aggregate` sees it."""
        return {}

    def check(self, payload: Payload) -> None:
        """Refuse a reply that cannot be used (PayloadError)."""
        check_payload(payload, self.upload_specification())

    def upload_specification(self) -> Specification:
        """What arrives: `expected`, or what the protection of uploads makes of it."""
        protection = self.task.protection
        return (
            self.expected()
            if protection is None
            else protection.upload_specification(self.expected(), self.task.classes)
        )

    def aggregate(self, round: int, replies: list[Reply]) -> None:
        """Learn from the checked replies, which come ordered by client; there is at least one.

        (Under differential privacy with noise on the server there may be none: the noise is added all the same.)
        """

    @property
    def uses_every_reply(self) -> bool:
        """Whether each reply counts by itself: no robust rule and no guarantee stands between."""
        return self.task.aggregation.rule == "mean" and not (self.task.protection and self.task.protection.on)

    def combine_by_class(self, round: int, replies: Sequence[Reply]) -> tuple[Tensor, Tensor]:
        """One row for each class that was sent, by the experiment's rule (their mean by default): (ids, rows)."""
        if self.task.protection is not None and self.task.protection.on:
            return self.task.protection.combine_by_class(
                [r.payload for r in replies], self.upload_specification(), round
            )
        return combine_by_class([r.payload for r in replies], _weights(replies), self.task.aggregation)

    def combine(
        self, round: int, replies: Sequence[Reply], reference: Payload, sizes: Sequence[float] | None = None
    ) -> Payload:
        """One payload out of payloads with equal entries, by the experiment's rule (their mean by default).

        `reference` is what the clients started from. `sizes` weigh the clients in the mean.
        """
        if self.task.protection is not None and self.task.protection.on:
            return self.task.protection.combine([r.payload for r in replies], reference, round)
        return combine_payloads(
            [r.payload for r in replies],
            reference,
            sizes=sizes,
            weights=_weights(replies),
            settings=self.task.aggregation,
        )

    def metrics(self) -> dict[str, float]:
        """Numbers about the server's state for the round's record."""
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        """All that changes over rounds."""
        return {}

    def check_state(self, state: dict[str, Tensor]) -> None:
        """Refuse a state that `load_state_dict` cannot use: by default, any but the present names, types and shapes."""
        check_payload(state, tensors_spec(self.state_dict()))

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from `state_dict()`."""


def _weights(replies: Sequence[Reply]) -> list[float] | None:
    return [r.weight for r in replies] if any(r.weight != 1.0 for r in replies) else None


class ClientHalf(Generic[OptionsT]):
    """One client's side of a method: how it trains, and how it predicts."""

    predicts_with_broadcast = False  # True: predictions need what the server sends (a global head, prototypes, ...)
    moves_by_steps_alone = False  # True: a round without a step of `client.fit` leaves the client exactly as it was

    def __init__(self, options: OptionsT, client: Client) -> None:
        self.options = options
        self.client = client
        self.model = client.model

    def expected(self) -> Specification:
        """What the server's payload must look like; anything else is refused before `train` sees it."""
        return {}

    def check(self, payload: Payload) -> None:
        """Refuse a broadcast that cannot be used (PayloadError)."""
        check_payload(payload, self.expected())

    def whole(self, payload: Payload) -> Payload:
        """What a payload, sent or received, stands for: itself, unless the method compresses what it sends."""
        return payload

    def train(self, round: int, payload: Payload) -> Payload:
        """One round on this client: train with `self.client.fit`, return what goes to the server."""
        raise NotImplementedError

    def receive(self, payload: Payload) -> None:
        """Take the server's payload for predictions (only called if `predicts_with_broadcast`)."""

    def predict(self, x: Tensor) -> Tensor:
        """Scores (N x classes) whose largest is the predicted class; the model is in eval mode."""
        logits: Tensor = self.model(x)[1]
        return logits

    def other_predictions(self, x: Tensor) -> dict[str, Tensor]:
        """Further scores to report beside `predict`, by name."""
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        """What the method keeps on this client over rounds beside the model (private: never leaves the client)."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from `state_dict()`."""
