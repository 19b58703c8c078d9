"""FedTGP: the server trains the prototypes, so that those of different classes are far apart.

Zhang et al., "FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning for Data and Model
Heterogeneity in Federated Learning", AAAI 2024.

Client loss, once the server has prototypes P (from the second round on), as in FedProto:

    CE(f(x), y) + weight * MSE(h(x), P[y]),     MSE the mean over batch and dimensions

Upload: each class's mean feature h(x) over the train set (eval mode, after training). Server: P = F(E), with a vector
E[c] for each class and F = Linear - ReLU - Linear, both trained by SGD on the pairs (mean feature p, class y) of all
clients with

    CE(-d, y),     d_c = ||p - P_c|| + delta * [c = y],     delta = min(xi, max_margin)

where xi, the adaptive margin, is the distance of a class's mean upload to the nearest of another class, the largest
over classes. Under a robust rule or a privacy guarantee there is one pair per class. The prediction is the class of the
nearest prototype; the accuracy of the classifier head is also reported, as "head".
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from fedl2g import rng
from fedl2g.learning.client import Task
from fedl2g.learning.optimizer import ClippedSGD
from fedl2g.methods.base import Combined, Options, Trained, Traits
from fedl2g.methods.class_means import ClassMeanServer, mean_features
from fedl2g.methods.prototypes import EXACT, PrototypeClient
from fedl2g.methods.registry import register_method
from fedl2g.payload import Payload


class FedTGPOptions(Options):
    """Clients send the mean features of each class; the server trains one prototype per class on them."""

    name: str = "fedtgp"
    weight: float = Field(
        10.0, ge=0, description="Weight of the distance to the prototypes relative to the cross entropy."
    )
    server_lr: float = Field(0.01, gt=0, description="Learning rate of the server's SGD on the prototypes.")
    server_epochs: int = Field(100, ge=1, description="Server epochs over the mean features of a round.")
    server_batch_size: int = Field(10, ge=1, description="Batch size of the server's SGD, in mean features.")
    max_margin: float = Field(100.0, ge=0, description="The largest margin between classes (the paper's tau).")


class TrainablePrototypes(nn.Module):
    """P = F(E): one trainable vector per class, mapped to the feature space by a network that all classes share."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(classes, width))
        self.map = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self) -> Tensor:
        prototypes: Tensor = self.map(self.vectors)
        return prototypes


class FedTGPServer(ClassMeanServer[FedTGPOptions]):
    """Trains the prototypes on the mean features; sends nothing before it has trained them once."""

    def __init__(self, options: FedTGPOptions, task: Task) -> None:
        super().__init__(options, task)
        with rng.seeded(task.seed, "fedtgp_init"):
            self.trainable = TrainablePrototypes(task.classes, self.width).to(task.dtype)

    @property
    def width(self) -> int:
        return self.task.feature_dim

    def update(self, round: int, combined: Combined) -> None:
        labels, features, weights = (combined.payload[name] for name in ("ids", "rows", "weights"))
        if not len(labels):
            return
        margin = min(adaptive_margin(labels, features, weights), self.options.max_margin)
        generator = rng.torch_stream(self.task.seed, "fedtgp", round)
        optimizer = ClippedSGD(self.trainable.parameters(), self.options.server_lr)
        for _ in range(self.options.server_epochs):
            order = torch.randperm(len(labels), generator=generator)
            for batch in torch.split(order, self.options.server_batch_size):
                distances = torch.cdist(features[batch], self.trainable(), compute_mode=EXACT)
                distances = distances + margin * one_hot(labels[batch], self.task.classes).to(distances.dtype)
                losses = cross_entropy(-distances, labels[batch], reduction="none")
                (losses * weights[batch]).mean().backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        with torch.no_grad():
            self.vectors.copy_(self.trainable())
        self.known.fill_(True)


def adaptive_margin(labels: Tensor, features: Tensor, weights: Tensor) -> float:
    """xi: how far apart the classes' mean features are; infinite if there is only one class."""
    ids, positions = torch.unique(labels, return_inverse=True)
    if len(ids) < 2:
        return torch.inf
    share = weights.double()[:, None]
    total = torch.zeros(len(ids), features.shape[1], dtype=torch.float64)
    means = total.index_add(0, positions, share * features.double())
    means /= torch.zeros(len(ids), 1, dtype=torch.float64).index_add(0, positions, share)
    distances = torch.cdist(means, means, compute_mode=EXACT)
    return float(distances.fill_diagonal_(torch.inf).amin(1).max())


class FedTGPClient(PrototypeClient[FedTGPOptions]):
    """Trains its features towards the prototypes, and sends the mean feature of each of its classes."""

    def train(self, round: int, payload: Payload) -> Trained:
        log = self.client.fit(round, self.pulled_loss(payload, self.options.weight))
        return Trained(mean_features(self.client), log)


register_method(
    "fedtgp",
    options=FedTGPOptions,
    server=FedTGPServer,
    client=FedTGPClient,
    traits=Traits(
        uploads="class vectors",
        vectors="features",
        every_row=True,
        predicts_with_broadcast=True,
        advice="Use it in place of fedproto where the server may spend seconds on each round: it trains prototypes "
        "that keep classes apart. Fewer `server_epochs` make the server faster, a lower `weight` keeps clients closer "
        "to their own data.",
    ),
)
