"""A client: its model (extractor + head), its data and its training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from fedl2g import rng
from fedl2g.learning.augmentation import Augmentation
from fedl2g.learning.moments import Moments
from fedl2g.learning.optimizer import Stepper, make_optimizer, slots_of
from fedl2g.learning.preparation import Preparation
from fedl2g.learning.settings import Amp, Augment, Optimizer, Schedule
from fedl2g.learning.training import Loss, SampleView, TrainingLog, train
from fedl2g.models import SplitModel, build_model
from fedl2g.schema import Schema

MOMENTS = "optimizer"  # the entry of a client's state that holds the running averages of its optimizer


@dataclass(frozen=True)
class Task:
    """The parameters shared by the server and all clients."""

    classes: int
    inputs: Schema
    seed: int
    rounds: int | None  # None unless the method declares that it uses the number of rounds (trait `uses_rounds`)
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
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    scheduled_rounds: int = 1  # of the whole run, for a schedule that depends on them
    augment: Augment = field(default_factory=Augment)
    amp: Amp = "off"

    def build(self, architecture: str, purpose: str, *ids: int, feature_dim: int | None = None) -> SplitModel:
        """Build a network whose initial weights depend only on the seed, the purpose and the ids."""
        width = self.feature_dim if feature_dim is None else feature_dim
        with rng.seeded(self.seed, purpose, *ids):
            model = build_model(architecture, classes=self.classes, inputs=self.inputs, feature_dim=width)
        layout = self.layout(architecture)
        if layout is torch.preserve_format and all(p.dtype == self.dtype for p in model.parameters()):
            return model  # fast path: a no-op `to` would take a fifth of the time of building a network
        model = model.to(self.dtype)
        return model if layout is torch.preserve_format else model.to(memory_format=layout)

    def build_client(self, architecture: str, client: int) -> SplitModel:
        """Build a client's network with its initial weights."""
        return self.build(architecture, "init", *self.start_ids(client))

    def start_ids(self, client: int) -> tuple[int, ...]:
        """What the initial weights of a client depend on besides the seed."""
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
        self._moments: Moments | None = None

    @property
    def preparation(self) -> Preparation:
        """How its samples are prepared, with its own statistics."""
        return self.train_set.prepare

    @property
    def device(self) -> torch.device:
        return self.train_set.device

    def keep_moments(self, state: torch.nn.ModuleDict) -> None:
        """Add to a client's state the optimizer's running averages for the networks in it, if it has any."""
        if slots := slots_of(self.task.optimizer):
            self._moments = state[MOMENTS] = Moments(list(state.named_parameters()), slots)

    def optimizer(self, *modules: torch.nn.Module, clip: float = math.inf, lr: float | None = None) -> Stepper:
        """The experiment's optimizer over the parameters of these modules, by default the client's own model.

        Its running averages persist over rounds for networks in the client's state, and start from zero for received
        ones. `lr` replaces the client's learning rate.
        """
        parameters = [p for module in modules or (self.model,) for p in module.parameters()]
        rate = self.task.client_lr if lr is None else lr
        return make_optimizer(self.task.optimizer, parameters, rate, clip, self._moments)

    def fit(
        self,
        round: int,
        loss: Loss,
        optimizers: Sequence[Stepper] | None = None,
        *,
        data: SampleView | None = None,
        networks: Sequence[torch.nn.Module] | None = None,
    ) -> TrainingLog:
        """Train for this round's local epochs and return the training log.

        Defaults: the experiment's optimizer on the client's model for `optimizers`, the whole train set for `data`, and
        the client's model for `networks`, which are put in train mode. The experiment's schedule, augmentation and
        mixed precision apply.
        """
        view = self.train_set if data is None else data
        for network in networks or (self.model,):
            network.train()
        steppers = list(optimizers or [self.optimizer()])
        for stepper in steppers:
            stepper.share = self.task.schedule.share(round, self.task.scheduled_rounds)
        with self.stream("train", round):
            return train(
                view, self._configured(loss, round), steppers, self._orders(round, len(view)), self.task.batch_size
            )

    def _configured(self, loss: Loss, round: int) -> Loss:
        """The loss on augmented images and in mixed precision, where the experiment asks for them."""
        task, stored = self.task, self.train_set.inputs
        computed = loss if task.amp == "off" else torch.autocast(self.device.type, dtype=torch.bfloat16)(loss)
        if not task.augment.on:
            return computed
        pixel = torch.zeros(1, stored.shape[1], 1, 1, dtype=stored.dtype, device=self.device)
        stream = rng.torch_stream(task.seed, "augment", self.id, round)
        augment = Augmentation(task.augment, stream, self.preparation.batch(pixel))
        return lambda x, y: computed(augment(x), y)

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
