"""FedProto: clients exchange the mean features of each class, and pull their features towards the global mean.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022.

With P[y] the server's prototype of the sample's class (from the second round on; a class without one adds nothing):

    CE(f(x), y) + weight * MSE(h(x), P[y]),     MSE the mean over batch and dimensions

Upload: the mean of h(x) per class over all batches of the round, accumulated during training. The server takes the
uniform mean over the clients that sent a class. The prediction is the class of the nearest prototype; the accuracy of
the classifier head is also reported, as "head".
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

from fedl2g.learning.client import Client
from fedl2g.methods.base import ClientHalf, Options, Trained, Traits
from fedl2g.methods.class_means import ClassMeans, ClassMeanServer, ClassTargets
from fedl2g.methods.registry import register_method
from fedl2g.payload import Payload, Specification, class_vector_spec


class FedProtoOptions(Options):
    """Clients exchange the mean features of each class and pull their own towards them."""

    name: str = "fedproto"
    weight: float = Field(
        10.0, ge=0, description="Weight of the distance to the prototypes relative to the cross entropy."
    )


class FedProtoServer(ClassMeanServer[FedProtoOptions]):
    """Averages the prototypes per class."""

    @property
    def width(self) -> int:
        return self.task.feature_dim


class FedProtoClient(ClientHalf[FedProtoOptions]):
    """Trains its features towards the prototypes, and sends the means of its own."""

    def __init__(self, options: FedProtoOptions, client: Client) -> None:
        super().__init__(options, client)
        self.prototypes: ClassTargets | None = None  # for predictions only: `train` uses its own broadcast
        self._cached: tuple[Tensor, Tensor] | None = None  # the last images and their features, reused for the head

    def expected(self) -> Specification:
        task = self.client.task
        return class_vector_spec(task.classes, task.feature_dim, task.dtype)

    def train(self, round: int, payload: Payload) -> Trained:
        targets = ClassTargets(payload, self.client)
        means = ClassMeans(self.client, self.client.task.feature_dim)

        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            features, logits = self.model(x)
            means.add(features, y)
            own = cross_entropy(logits, y)
            if not targets.exist:
                return own, own
            target = targets.vectors.index_select(0, y)
            if not targets.complete:  # a class without a prototype adds nothing
                target = torch.where(targets.known[y, None], target, features.detach())
            return own + self.options.weight * mse_loss(features, target), own

        log = self.client.fit(round, loss)
        return Trained(means.pack(), log)

    def receive(self, payload: Payload) -> None:
        self.prototypes = self.received["prototypes"] = ClassTargets(payload, self.client)
        self._cached = None

    def predict(self, x: Tensor) -> Tensor:
        features = self.model.extractor(x)
        self._cached = (x, features)
        if self.prototypes is None or not self.prototypes.exist:
            scores: Tensor = self.model.head(features)
            return scores
        # Without matrix products: their rounding errors are as large as the distances between close prototypes.
        distances = torch.cdist(features, self.prototypes.vectors, compute_mode="donot_use_mm_for_euclid_dist")
        return -distances.masked_fill(~self.prototypes.known, torch.inf)

    def other_predictions(self, x: Tensor) -> dict[str, Tensor]:
        cached, self._cached = self._cached, None
        return {"head": self.model.head(cached[1]) if cached is not None and cached[0] is x else self.model(x)[1]}


register_method(
    "fedproto",
    options=FedProtoOptions,
    server=FedProtoServer,
    client=FedProtoClient,
    traits=Traits(
        uploads="class vectors",
        vectors="features",
        predicts_with_broadcast=True,
        advice="Use it for long runs with similar networks: it predicts by the nearest prototype, which different "
        "networks agree on late. Compare the accuracy called `head` before you discard it; lower `weight` if that falls, too.",
    ),
)
