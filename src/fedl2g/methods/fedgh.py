"""FedGH: the server trains one head for all clients, on the mean features of their classes.

Yi et al., "FedGH: Heterogeneous Federated Learning with Generalized Global Header", ACM Multimedia 2023.

Each round starts from the server's head and trains both extractor and head with

    CE(f(x), y)

Upload: each class's mean feature h(x) over the train set (eval mode). The server trains the head by SGD on the pairs
(mean feature p, class c) of all clients with CE(head(p), c); under a robust rule or a privacy guarantee, on one mean
feature per class. Predictions are those of the client's extractor with the server's head.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch.nn.functional import cross_entropy

from fedl2g import rng
from fedl2g.learning.optimizer import ClippedSGD
from fedl2g.methods.base import Combined, Options, Trained, Traits
from fedl2g.methods.class_means import mean_features
from fedl2g.methods.registry import register_method
from fedl2g.methods.shared_network import SharedHeadClient, SharedHeadServer
from fedl2g.payload import Payload, Specification, class_vector_spec


class FedGHOptions(Options):
    """One head trained on the server with the clients' mean features."""

    name: str = "fedgh"
    server_lr: float = Field(0.01, gt=0, description="Learning rate of the server's SGD on the shared head.")
    server_epochs: int = Field(1, ge=1, description="Server epochs over the mean features of a round.")
    server_batch_size: int = Field(10, ge=1, description="Batch size of the server's SGD, in mean features.")


class FedGHServer(SharedHeadServer[FedGHOptions]):
    """Trains the head on the mean features."""

    def expected(self) -> Specification:
        return class_vector_spec(self.task.classes, self.task.feature_dim, self.task.dtype)

    def update(self, round: int, combined: Combined) -> None:
        labels, features, weights = (combined.payload[name] for name in ("ids", "rows", "weights"))
        if not len(labels):
            return
        generator = rng.torch_stream(self.task.seed, "fedgh", round)
        head = self.shared.network.train()
        optimizer = ClippedSGD(head.parameters(), self.options.server_lr)
        with rng.seeded(self.task.seed, "fedgh_dropout", round):
            for _ in range(self.options.server_epochs):
                order = torch.randperm(len(labels), generator=generator)
                for batch in torch.split(order, self.options.server_batch_size):
                    losses = cross_entropy(head(features[batch]), labels[batch], reduction="none")
                    (losses * weights[batch]).mean().backward()  # type: ignore[no-untyped-call]
                    optimizer.step()


class FedGHClient(SharedHeadClient[FedGHOptions]):
    """Trains its network starting from the server's head, and sends the mean feature of each of its classes."""

    def train(self, round: int, payload: Payload) -> Trained:
        self.shared.load(payload)
        log = self.client.fit(round, self.own_loss)
        return Trained(mean_features(self.client), log)


register_method(
    "fedgh",
    options=FedGHOptions,
    server=FedGHServer,
    client=FedGHClient,
    traits=Traits(
        uploads="class vectors",
        vectors="features",
        every_row=True,
        shares_head=True,
        predicts_with_broadcast=True,
        advice="Use it where all clients need the same head and the server may train it. "
        "Its options set how long and how fast the server trains the head on the clients' mean features.",
    ),
)
