"""A client: its model (extractor + head), its data and its training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedl2g import rng
from fedl2g.learning.optimizer import ClippedSGD
from fedl2g.learning.preparation import Preparation
from fedl2g.learning.training import Loss, SampleView, TrainingLog, train
from fedl2g.models import SplitModel, build_model
from fedl2g.schema import Schema


@dataclass(frozen=True)
class Task:
    """The parameters shared by the server and all clients."""

    classes: int
    inputs: Schema
    seed: int
    rounds: int | None  # None: the method does not say that it uses the number of rounds (trait `uses_rounds`)
    auxiliary: str  # the architecture of the network that the server builds: an auxiliary model, a shared head
    batch_size: int = 10
    local_epochs: int = 1
    client_lr: float = 0.01
    reshuffle: bool = True  # else every epoch has the order of the train set
    equal_start: bool = False  # clients of one architecture start with equal weights
    quiz: Literal["fixed", "first"] = "fixed"  # a quiz set is drawn once, or the first samples of the train set
    feature_dim: int = 512
    dtype: torch.dtype = torch.float32
    channels_last: frozenset[str] = frozenset()  # the architectures that use this memory layout

    def build(self, architecture: str, purpose: str, *ids: int, feature_dim: int | None = None) -> SplitModel:
        """Build a network whose initial weights depend only on the seed, the purpose and the ids."""
        with rng.seeded(self.seed, purpose, *ids):
            model = build_model(
                architecture,
                classes=self.classes,
                inputs=self.inputs,
                feature_dim=self.feature_dim if feature_dim is None else feature_dim,
            )
        layout = self.layout(architecture)
        if layout is torch.preserve_format and all(p.dtype == self.dtype for p in model.parameters()):
            return model  # fast path: a no-op `to` would take a fifth of the time of building a network
        model = model.to(self.dtype)
        return model if layout is torch.preserve_format else model.to(memory_format=layout)

    def build_client(self, architecture: str, client: int) -> SplitModel:
        """Build a client's network with its initial weights."""
        return self.build(architecture, "init", *self.start_ids(client))

    def start_ids(self, client: int) -> tuple[int, ...]:
        """What the initial weights of a client depend on beside the seed."""
        return () if self.equal_start else (client,)

    def layout(self, architecture: str) -> torch.memory_format:
        """The memory layout of an architecture's weights and images."""
        last = self.inputs.kind == "image" and architecture in self.channels_last
        return torch.channels_last if last else torch.preserve_format

    def build_auxiliary(self, feature_dim: int | None = None) -> SplitModel:
        """Build the auxiliary model with the server's initial weights."""
        return self.build(self.auxiliary, "auxiliary", feature_dim=feature_dim)


class Client:
    """One participant: its network, its train, test and validation samples, and its training."""

    def __init__(
        self,
        id: int,
        task: Task,
        model: SplitModel,
        train_set: SampleView,
        test_set: SampleView,
        validation_set: SampleView | None = None,
    ) -> None:
        self.id = id
        self.task = task
        self.model = model
        self.train_set = train_set
        self.test_set = test_set
        self.validation_set = train_set.subset(torch.arange(0)) if validation_set is None else validation_set

    @property
    def preparation(self) -> Preparation:
        """How its samples are prepared, with its own statistics."""
        return self.train_set.prepare

    @property
    def device(self) -> torch.device:
        return self.train_set.device

    def optimizer(self, *modules: torch.nn.Module, clip: float = float("inf")) -> ClippedSGD:
        """SGD at the client's learning rate over the parameters of these modules, by default its own model."""
        parameters = [p for module in modules or (self.model,) for p in module.parameters()]
        return ClippedSGD(parameters, self.task.client_lr, clip)

    def fit(
        self,
        round: int,
        loss: Loss,
        optimizers: Sequence[ClippedSGD] | None = None,
        *,
        data: SampleView | None = None,
        networks: Sequence[torch.nn.Module] | None = None,
    ) -> TrainingLog:
        """Train for this round's local epochs and return the training log.

        Defaults: plain SGD on the client's model for `optimizers`, the whole train set for `data`, and the client's
        model for `networks`, which are put in train mode.
        """
        view = self.train_set if data is None else data
        for network in networks or (self.model,):
            network.train()
        with self.stream("train", round):
            return train(
                view, loss, optimizers or [self.optimizer()], self._orders(round, len(view)), self.task.batch_size
            )

    def start_stream(self, purpose: str) -> AbstractContextManager[None]:
        """Seed torch's global generator for the initial weights of another private network of this client."""
        return rng.seeded(self.task.seed, purpose, *self.task.start_ids(self.id), device=self.device)

    def stream(self, purpose: str, *ids: int) -> AbstractContextManager[None]:
        """Seed torch's global generator for one purpose of this client inside a `with` block."""
        return rng.seeded(self.task.seed, purpose, self.id, *ids, device=self.device)

    def _orders(self, round: int, samples: int) -> Iterator[Tensor]:
        for epoch in range(self.task.local_epochs):
            stream = rng.torch_stream(self.task.seed, "order", self.id, round, epoch)
            yield torch.randperm(samples, generator=stream) if self.task.reshuffle else torch.arange(samples)
