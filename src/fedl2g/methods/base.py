"""What a method is made of: options, traits, a server half and a client half."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedl2g.learning.client import Client, Task
from fedl2g.learning.training import TrainingLog
from fedl2g.methods.options import Options
from fedl2g.payload import PLAIN, Codec, Payload, Specification, check_payload

__all__ = ["ClientHalf", "Combined", "Options", "Reply", "Report", "ServerHalf", "Trained", "Traits"]

Uploads = Literal["nothing", "class vectors", "network"]
Vectors = Literal["", "features", "logits", "guiding gradients"]


@dataclass(frozen=True)
class Traits:
    """What is known of a method without running it. Whoever needs to know something about a method reads it here."""

    uploads: Uploads = "nothing"
    vectors: Vectors = ""
    """What the class vectors of an upload are means or sums of; the leakage probe asks about them."""
    every_row: bool = False
    """Under the plain mean, the server uses each client's class vectors by themselves, not their mean by class."""
    weighted_by_samples: bool = False
    """Under the plain mean, networks count by the sizes of their clients' train sets."""
    raw_replies: bool = False
    """`update` reads single replies: nothing can combine or protect them, so rules and guarantees are refused."""
    codec: Codec = PLAIN
    """How payloads are packed for the wire."""
    shares_head: bool = False
    """Needs the same head on every client."""
    predicts_with_broadcast: bool = False
    """Predictions need what the server sends (a global head, prototypes, ...)."""
    auxiliary_network: bool = False
    """Trains a small shared network beside the client's own."""
    warm_up: bool = False
    """Its options have `warmup_rounds`, in which clients do not train."""
    extra_passes: int = 0
    """Forward and backward passes of one batch that each round adds to a client's training."""
    idle_without_steps: bool = False
    """A round without a training step leaves the client exactly as it was."""
    communication_note: str = ""
    """What must be known to read its megabytes, for reports."""

    @property
    def compressed(self) -> bool:
        """Whether clipping what is sent says nothing about what it stands for."""
        return self.codec is not PLAIN

    def moves(self, steps: int) -> bool:
        """Whether a client is another one after a round with so many training steps."""
        return steps > 0 or not self.idle_without_steps


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


@dataclass(frozen=True)
class Combined:
    """What the aggregator made of a round's replies."""

    payload: Payload
    """Class vectors: `ids` and `rows`, one row a class (with the trait `every_row` also `weights`, one a row, and
    classes may repeat). A network: its tensors."""
    replies: tuple[Reply, ...] = ()
    """The replies themselves, ordered by client: only for a method whose traits say `raw_replies`."""


@dataclass(frozen=True)
class Trained:
    """What a client's round came to: the upload, and the log of its training."""

    payload: Payload
    log: TrainingLog = field(default_factory=TrainingLog)


OptionsT = TypeVar("OptionsT", bound=Options)


class ServerHalf(nn.Module, Generic[OptionsT]):
    """The server's side of a method: what it sends, and how it moves by what the aggregator combined.

    It is a torch module: what changes over rounds is a buffer (`register_buffer`) or a network in it, and is saved and
    restored by that alone.
    """

    def __init__(self, options: OptionsT, task: Task) -> None:
        super().__init__()
        self.options = options
        self.task = task

    def broadcast(self, round: int) -> Payload:
        """What every participant of the round receives."""
        return {}

    def expected(self) -> Specification:
        """What a client's upload must look like; anything else is refused before it is combined."""
        return {}

    def update(self, round: int, combined: Combined) -> None:
        """Learn from what the replies of a round were combined to."""

    def metrics(self) -> dict[str, float]:
        """Numbers about the server's state for the round's record."""
        return {}


class ClientHalf(Generic[OptionsT]):
    """One client's side of a method: how it trains, and how it predicts."""

    def __init__(self, options: OptionsT, client: Client) -> None:
        self.options = options
        self.client = client
        self.model = client.model
        self.state = nn.ModuleDict({"model": client.model})
        """What changes over rounds on this client: saved and restored, private, never sent."""
        self.received = nn.ModuleDict()
        """What is made anew from each broadcast: it takes memory, but is never saved."""

    def expected(self) -> Specification:
        """What the server's payload must look like; anything else is refused before `train` sees it."""
        return {}

    def check(self, payload: Payload) -> None:
        """Refuse a broadcast that cannot be used (PayloadError)."""
        check_payload(payload, self.expected())

    def train(self, round: int, payload: Payload) -> Trained:
        """One round on this client: train with `self.client.fit`, return what goes to the server and the log."""
        raise NotImplementedError

    def own_loss(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of local training, CE(f(x), y), for `self.client.fit`."""
        own = cross_entropy(self.model(x)[1], y)
        return own, own

    def receive(self, payload: Payload) -> None:
        """Take the server's payload for predictions (only called with the trait `predicts_with_broadcast`)."""

    def predict(self, x: Tensor) -> Tensor:
        """Scores (N x classes) whose largest is the predicted class; the model is in eval mode."""
        logits: Tensor = self.model(x)[1]
        return logits

    def other_predictions(self, x: Tensor) -> dict[str, Tensor]:
        """Further scores to report beside `predict`, by name."""
        return {}


AnyClientHalf = ClientHalf[Any]
AnyServerHalf = ServerHalf[Any]
