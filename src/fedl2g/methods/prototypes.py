"""Clients that are pulled towards global prototypes and predict by the nearest: those of FedProto and FedTGP."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

from fedl2g.learning.client import Client
from fedl2g.learning.training import Loss
from fedl2g.methods.base import ClientHalf, OptionsT
from fedl2g.methods.class_means import ClassMeans, ClassTargets
from fedl2g.payload import Payload, Specification, class_vector_spec

# Without matrix products: their rounding errors are as large as the distances between close prototypes.
EXACT = "donot_use_mm_for_euclid_dist"


class PrototypeClient(ClientHalf[OptionsT]):
    """A client whose features are drawn towards the prototypes of their classes."""

    def __init__(self, options: OptionsT, client: Client) -> None:
        super().__init__(options, client)
        self.prototypes: ClassTargets | None = None  # for predictions only: `train` uses its own broadcast
        self._cached: tuple[Tensor, Tensor] | None = None  # the last images and their features, reused for the head

    def expected(self) -> Specification:
        task = self.client.task
        return class_vector_spec(task.classes, task.feature_dim, task.dtype)

    def pulled_loss(self, payload: Payload, weight: float, means: ClassMeans | None = None) -> Loss:
        """CE(f(x), y) + weight * MSE(h(x), P[y]) with the prototypes P of a broadcast; `means` collects the h(x)."""
        targets = ClassTargets(payload, self.client)

        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            features, logits = self.model(x)
            if means is not None:
                means.add(features, y)
            own = cross_entropy(logits, y)
            if not targets.exist:
                return own, own
            target = targets.vectors.index_select(0, y)
            if not targets.complete:  # a class without a prototype adds nothing
                target = torch.where(targets.known[y, None], target, features.detach())
            return own + weight * mse_loss(features, target), own

        return loss

    def receive(self, payload: Payload) -> None:
        self.prototypes = self.received["prototypes"] = ClassTargets(payload, self.client)
        self._cached = None

    def predict(self, x: Tensor) -> Tensor:
        features = self.model.extractor(x)
        self._cached = (x, features)
        if self.prototypes is None or not self.prototypes.exist:
            scores: Tensor = self.model.head(features)
            return scores
        distances = torch.cdist(features, self.prototypes.vectors, compute_mode=EXACT)
        return -distances.masked_fill(~self.prototypes.known, torch.inf)

    def other_predictions(self, x: Tensor) -> dict[str, Tensor]:
        cached, self._cached = self._cached, None
        return {"head": self.model.head(cached[1]) if cached is not None and cached[0] is x else self.model(x)[1]}
