"""What a method is made of: options, traits, a server half and a client half."""

from __future__ import annotations

from collections.abc import Mapping
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
    """What is known of a method without running it; the rest of the package branches on traits, never on names."""

    uploads: Uploads = "nothing"
    vectors: Vectors = ""
    """What the class vectors of an upload are means or sums of; used by the leakage probe."""
    every_row: bool = False
    """Under the plain mean, the server receives every client's class vectors instead of their mean per class."""
    weighted_by_samples: bool = False
    """Under the plain mean, networks are weighted by the sizes of their clients' train sets."""
    raw_replies: bool = False
    """`update` reads individual replies, which cannot be combined or protected: rules and privacy are refused."""
    codec: Codec = PLAIN
    """How payloads are packed for the wire."""
    shares_head: bool = False
    """Needs the same head on every client."""
    predicts_with_broadcast: bool = False
    """Predictions depend on the broadcast (a global head, prototypes, ...)."""
    auxiliary_network: bool = False
    """Trains a small shared network alongside the client's own."""
    warm_up: bool = False
    """Its options have `warmup_rounds`, in which clients do not train."""
    extra_passes: int = 0
    """Forward and backward passes of one batch that each round adds to a client's training."""
    metrics: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """The numbers that clients report besides their loss, each with its smallest and largest value."""
    uses_rounds: bool = False
    """Its computation depends on the experiment's number of rounds: only such a method gets it, as `task.rounds`, and
    its runs cannot be extended."""
    idle_without_steps: bool = False
    """A round without a training step leaves the client exactly as it was."""
    communication_note: str = ""
    """Note for reports on how to interpret the method's communication cost."""
    advice: str = ""
    """When to use the method and which option, in two sentences, for `fedl2g methods NAME`."""

    @property
    def compressed(self) -> bool:
        """Whether payloads are encoded, so that clipping the encoding does not bound the decoded tensors."""
        return self.codec is not PLAIN

    def moves(self, steps: int) -> bool:
        """Whether a round with this many training steps changes the client's state."""
        return steps > 0 or not self.idle_without_steps


@dataclass(frozen=True)
class Report:
    """Statistics of a client's round, sent with the payload for the records."""

    samples: int  # the size of its train set
    steps: int = 0
    loss: float | None = None  # cross entropy alone, mean over the round's batches
    seconds: float = 0.0
    laps: dict[str, float] = field(default_factory=dict)  # the breakdown of these seconds, if profiling is on
    metrics: dict[str, float] = field(default_factory=dict)  # the method's own numbers, as its traits declare them


@dataclass(frozen=True)
class Reply:
    """One client's answer in one round."""

    client: int
    payload: Payload
    report: Report = field(compare=False)
    weight: float = 1.0  # set by the server: below 1 for a stale reply


@dataclass(frozen=True)
class Combined:
    """The aggregator's result for one round."""

    payload: Payload
    """Class vectors: `ids` and `rows`, one row per class (with the trait `every_row` also `weights`, one per row, and
    classes may repeat). A network: its tensors."""
    replies: tuple[Reply, ...] = ()
    """The individual replies, ordered by client: only for methods with the trait `raw_replies`."""


@dataclass(frozen=True)
class Trained:
    """The result of a client's round: the upload and the training log."""

    payload: Payload
    log: TrainingLog = field(default_factory=TrainingLog)


OptionsT = TypeVar("OptionsT", bound=Options)


class ServerHalf(nn.Module, Generic[OptionsT]):
    """The server's side of a method: what it broadcasts, and how it updates from the combined replies.

    It is a torch module: everything that changes over rounds must be a buffer (`register_buffer`) or a submodule;
    checkpoints save and restore its `state_dict` and nothing else.
    """

    def __init__(self, options: OptionsT, task: Task) -> None:
        super().__init__()
        self.options = options
        self.task = task

    def broadcast(self, round: int) -> Payload:
        """The payload that every participant of the round receives."""
        return {}

    def expected(self) -> Specification:
        """The required form of an upload; anything else is rejected before aggregation."""
        return {}

    def update(self, round: int, combined: Combined) -> None:
        """Update the server's state from a round's combined replies."""

    def metrics(self) -> dict[str, float]:
        """Numbers about the server's state for the round's record."""
        return {}


class ClientHalf(Generic[OptionsT]):
    """One client's side of a method: how it trains, and how it predicts."""

    def __init__(self, options: OptionsT, client: Client) -> None:
        self.options = options
        self.client = client
        self.model = client.model
        self.state = nn.ModuleDict({"model": client.model, "preparation": client.preparation})
        """Everything that changes over rounds on this client: saved in checkpoints, private, never sent."""
        self.received = nn.ModuleDict()
        """Modules rebuilt from each broadcast: counted against the memory budget, never saved."""

    def expected(self) -> Specification:
        """The required form of a broadcast; anything else is rejected before `train` is called."""
        return {}

    def check(self, payload: Payload) -> None:
        """Raise PayloadError for a broadcast that cannot be used."""
        check_payload(payload, self.expected())

    def train(self, round: int, payload: Payload) -> Trained:
        """Run one round on this client: train with `self.client.fit`, return the upload and the training log."""
        raise NotImplementedError

    def own_loss(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of purely local training, CE(f(x), y), for `self.client.fit`."""
        own = cross_entropy(self.model(x)[1], y)
        return own, own

    def receive(self, payload: Payload) -> None:
        """Load a broadcast before predicting (only called with the trait `predicts_with_broadcast`)."""

    def predict(self, x: Tensor) -> Tensor:
        """Scores (N x classes) whose largest is the predicted class; the model is in eval mode."""
        logits: Tensor = self.model(x)[1]
        return logits

    def other_predictions(self, x: Tensor) -> dict[str, Tensor]:
        """Scores of additional predictors to report alongside `predict`, by name."""
        return {}


AnyClientHalf = ClientHalf[Any]
AnyServerHalf = ServerHalf[Any]
