"""Class vectors that are means: the prototypes of FedGH, FedProto and FedTGP, FedDistill's mean logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedl2g.learning.client import Client, Task
from fedl2g.methods.base import Combined, OptionsT, ServerHalf
from fedl2g.payload import Payload, Specification, class_vector_spec, class_vectors

_FEATURE_BATCH = 250


class ClassMeans:
    """Running per-class sums of vectors, kept on the client's device so that adding a batch needs no sync."""

    def __init__(self, client: Client, width: int) -> None:
        task = client.task
        self.sums = torch.zeros(task.classes, width, dtype=task.dtype, device=client.device)
        self.labels: list[Tensor] = []

    def add(self, vectors: Tensor, labels: Tensor) -> None:
        """Add the vectors of one batch."""
        self.sums.index_add_(0, labels, vectors.detach().to(self.sums.dtype))
        self.labels.append(labels)

    def pack(self) -> Payload:
        """The mean of each class seen, as class vectors."""
        counts = torch.cat(self.labels).bincount(minlength=len(self.sums))
        ids = counts.nonzero().flatten()
        return class_vectors(ids, self.sums[ids] / counts[ids, None])


@torch.no_grad()
def mean_features(client: Client) -> Payload:
    """The mean feature h(x) of each class in a client's train set, in one pass in eval mode."""
    means = ClassMeans(client, client.task.feature_dim)
    client.model.eval()
    for x, y in client.train_set.batches(_FEATURE_BATCH):
        means.add(client.model.extractor(x), y)
    return means.pack()


class ClassTargets(nn.Module):
    """The server's class vectors as training targets on a client."""

    vectors: Tensor
    known: Tensor

    def __init__(self, payload: Payload, client: Client) -> None:
        super().__init__()
        ids, rows = payload["ids"], payload["rows"]
        vectors = rows.new_zeros(client.task.classes, rows.shape[1])
        vectors[ids] = rows
        known = torch.zeros(client.task.classes, dtype=torch.bool)
        known[ids] = True
        self.exist = len(ids) > 0
        self.complete = len(ids) == client.task.classes
        self.register_buffer("vectors", vectors.to(client.device))
        self.register_buffer("known", known.to(client.device))


class ClassMeanServer(ServerHalf[OptionsT]):
    """Keeps the uniform mean of the vectors sent for each class; a class that nobody sends keeps its vector."""

    vectors: Tensor
    known: Tensor

    def __init__(self, options: OptionsT, task: Task) -> None:
        super().__init__(options, task)
        self.register_buffer("vectors", torch.zeros(task.classes, self.width, dtype=task.dtype))
        self.register_buffer("known", torch.zeros(task.classes, dtype=torch.bool))

    @property
    def width(self) -> int:
        """The width of a class vector."""
        raise NotImplementedError

    def broadcast(self, round: int) -> Payload:
        ids = self.known.nonzero().flatten()
        return class_vectors(ids, self.vectors[ids])

    def expected(self) -> Specification:
        return class_vector_spec(self.task.classes, self.width, self.task.dtype)

    def update(self, round: int, combined: Combined) -> None:
        ids, rows = combined.payload["ids"], combined.payload["rows"]
        self.vectors[ids] = rows
        self.known[ids] = True
