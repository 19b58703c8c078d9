"""A tiny federation in float64, and the batches that its clients must train on, for tests of the methods."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedl2g.experiment.policies import Aggregation
from fedl2g.learning.client import Client, Task
from fedl2g.learning.preparation import ImagePreparation
from fedl2g.learning.training import SampleView
from fedl2g.methods.base import ClientHalf, Reply, Report, ServerHalf, Traits
from fedl2g.methods.registry import get_method
from fedl2g.payload import Payload
from fedl2g.rng import torch_stream
from fedl2g.round.aggregator import ByRule, RawReplies
from fedl2g.schema import image_schema

CLASSES, FEATURES, BATCH, EPOCHS, LR, SEED = 4, 6, 3, 2, 0.05, 11
LABELS = ([0, 1, 1, 0, 1, 0, 1], [1, 2, 2, 1, 2], [0, 2])  # by client; class 3 exists nowhere


def tiny_conv(classes: int, feature_dim: int) -> tuple[nn.Module, nn.Module]:
    """A convolution with BatchNorm; also the auxiliary model."""
    extractor = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten())
    return extractor, nn.Linear(feature_dim, classes)


def tiny_dense(classes: int, feature_dim: int) -> tuple[nn.Module, nn.Module]:
    """A hidden layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.Tanh()), nn.Linear(feature_dim, classes)


def deep_head(classes: int, feature_dim: int) -> tuple[nn.Module, nn.Module]:
    """A network with another head than the two above."""
    head = nn.Sequential(nn.Linear(feature_dim, 5), nn.ReLU(), nn.Linear(5, classes))
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 6)), head


ARCHITECTURES = ("method_helpers:tiny_conv", "method_helpers:tiny_dense")


@dataclass
class World:
    """The two halves of a method with three clients, played by hand."""

    traits: Traits
    server: ServerHalf[Any]
    halves: list[ClientHalf[Any]]
    uploads: list[Payload] = field(default_factory=list)

    def play(self, round: int) -> None:
        """One round with all clients, everything checked on both sides as an engine does."""
        payload = self.server.broadcast(round)
        self.uploads = []
        for half in self.halves:
            half.check(payload)
            self.uploads.append(half.train(round, payload).payload)
            self.check(self.uploads[-1])
        replies = [
            Reply(half.client.id, upload, Report(len(half.client.train_set)))
            for half, upload in zip(self.halves, self.uploads, strict=True)
        ]
        expected = self.server.expected()
        aggregator = ByRule(Aggregation(), self.traits, expected)
        if self.traits.raw_replies:
            aggregator = RawReplies(self.traits, expected, None)
        combined = aggregator.combine(round, replies, payload)
        if combined is not None:
            self.server.update(round, combined)

    def check(self, upload: Payload) -> None:
        """Refuse an upload that cannot be used, as the federation does."""
        self.traits.codec.check(upload, self.server.expected())

    def predictions(self, round: int, x: Tensor) -> list[Tensor]:
        """Every client's scores after a round."""
        payload = self.server.broadcast(round + 1)
        scores = []
        for half in self.halves:
            if self.traits.predicts_with_broadcast:
                half.check(payload)
                half.receive(payload)
            half.model.eval()
            with torch.no_grad():
                scores.append(half.predict(x))
        return scores


def make_world(method: str, models: tuple[str, ...] = ARCHITECTURES, scale: float = 1.0, **options: Any) -> World:
    """Three clients of a method; `scale` enlarges all heads, and so the gradients."""
    known = get_method(method)
    settings = known.options.model_validate({"name": method, **options})
    task = Task(
        classes=CLASSES,
        inputs=image_schema(1, 4, 4),
        seed=SEED,
        rounds=5,
        auxiliary=models[0],
        batch_size=BATCH,
        local_epochs=EPOCHS,
        client_lr=LR,
        feature_dim=FEATURES,
        dtype=torch.float64,
    )
    labels = torch.tensor([label for part in LABELS for label in part])
    images = torch.randint(0, 256, (len(labels), 1, 4, 4), generator=torch_stream(0, "images"), dtype=torch.uint8)
    server, halves, start = known.server(settings, task), [], 0
    for number, part in enumerate(LABELS):
        positions = torch.arange(start, start + len(part))
        view = SampleView(
            images, labels, positions, device=torch.device("cpu"), prepare=ImagePreparation(torch.float64)
        )
        model = task.build_client(models[number % len(models)], number)
        halves.append(known.client(settings, Client(number, task, model, view, view)))
        start += len(part)
    networks = [half.model for half in halves] + ([server.shared.network] if hasattr(server, "shared") else [])
    with torch.no_grad():
        for network in networks:
            for parameter in getattr(network, "head", network).parameters():
                parameter.mul_(scale)
    return World(known.traits, server, halves)


def samples(half: ClientHalf[Any]) -> tuple[Tensor, Tensor]:
    """All of a client's images, scaled to -1..1, and labels."""
    view = half.client.train_set
    return view.inputs[view.indices].double() / 127.5 - 1, view.labels[view.indices]


def batches(half: ClientHalf[Any], round: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of a round's local epochs: reshuffled each epoch, the incomplete last one dropped."""
    x, y = samples(half)
    for epoch in range(EPOCHS):
        order = torch.randperm(len(y), generator=torch_stream(SEED, "order", half.client.id, round, epoch))
        size = min(BATCH, len(y))
        for step in range(len(y) // size):
            chosen = order[step * size : (step + 1) * size]
            yield x[chosen], y[chosen]


def assert_same(found: nn.Module, expected: nn.Module) -> None:
    """Parameters and buffers agree to rounding."""
    reference = expected.state_dict()
    assert found.state_dict().keys() == reference.keys()
    for name, tensor in found.state_dict().items():
        assert_close(tensor, reference[name], name)


def assert_close(found: Tensor, expected: Tensor, what: str = "") -> None:
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11, msg=lambda m: f"{what}: {m}")
