"""FedGH: the server trains one head for all clients, on the mean features of their classes.

Yi et al., "FedGH: Heterogeneous Federated Learning with Generalized Global Header", ACM Multimedia 2023.

Each round starts from the server's head and trains extractor and head alike with

    CE(f(x), y)

Then each class's mean feature h(x) over the train set (eval mode) goes up. The server trains the head by SGD on the
pairs (mean feature p, class c) of all clients with CE(head(p), c). Predictions are those of the client's extractor with
the server's head.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedl2g import rng
from fedl2g.learning.optimizer import ClippedSGD
from fedl2g.methods.base import Options, Reply
from fedl2g.methods.class_means import ClassMeans
from fedl2g.methods.registry import register_method
from fedl2g.methods.shared_network import SharedHeadClient, SharedHeadServer
from fedl2g.payload import Payload, Specification, class_vector_spec

_FEATURE_BATCH = 250


class FedGHOptions(Options):
    """One head trained on the server with the clients' mean features."""

    name: str = "fedgh"
    server_lr: float = Field(0.01, gt=0, description="Rate of the server's SGD on the shared head.")
    server_epochs: int = Field(1, ge=1, description="Epochs of the server over the mean features of a round.")
    server_batch_size: int = Field(10, ge=1, description="Mean features in a batch of the server's SGD.")


class FedGHServer(SharedHeadServer[FedGHOptions]):
    """Trains the head on the mean features."""

    uploads = "class vectors"

    def expected(self) -> Specification:
        return class_vector_spec(self.task.classes, self.task.feature_dim, self.task.dtype)

    def aggregate(self, round: int, replies: list[Reply]) -> None:
        if self.uses_every_reply:
            features = torch.cat([reply.payload["rows"] for reply in replies])
            labels = torch.cat([reply.payload["ids"] for reply in replies])
            weights = torch.cat([torch.full_like(r.payload["rows"][:, 0], r.weight) for r in replies])
        else:
            labels, features = self.combine_by_class(round, replies)  # one feature for each class, by the rule
            weights = torch.ones_like(features[:, 0])
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
    """Trains its network from the server's head on, and sends the mean feature of each of its classes."""

    def train(self, round: int, payload: Payload) -> Payload:
        self.shared.load(payload)

        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            own = cross_entropy(self.model(x)[1], y)
            return own, own

        self.client.fit(round, loss)
        return self._mean_features()

    @torch.no_grad()
    def _mean_features(self) -> Payload:
        means = ClassMeans(self.client, self.client.task.feature_dim)
        self.model.eval()
        for x, y in self.client.train_set.batches(_FEATURE_BATCH):
            means.add(self.model.extractor(x), y)
        return means.pack()


register_method("fedgh", options=FedGHOptions, server=FedGHServer, client=FedGHClient, shares_head=True)
