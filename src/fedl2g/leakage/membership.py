"""Sample membership: does an upload tell whether a given sample was in it?

The attacker is stronger than the server: it has the client's network as it was after the round, its quiz set, what the
server sent, and a sample with its label. It computes what the client would upload if this sample were all it had, and
compares that with the row that was sent for the sample's class:

    FedProto, FedDistill   minus the distance between the row and the sample's features, or logits
    FedL2G                 the cosine between the row and the sample's own guiding gradient

The score of a row is the area under the ROC curve of "this sample was in the upload": members are the client's training
samples of the class (for FedL2G those of the round's study batch), the others its test samples of the class.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from fedl2g.learning.guidance import guiding_gradient
from fedl2g.learning.training import ImageView
from fedl2g.methods.base import ClientHalf
from fedl2g.methods.class_means import ClassTargets
from fedl2g.methods.feddistill import FedDistillClient
from fedl2g.methods.fedl2g import FedL2GClient
from fedl2g.methods.fedproto import FedProtoClient
from fedl2g.payload import Payload

MOST_SAMPLES = 40  # that are tried on an upload, of each kind


def members_of(half: ClientHalf[Any], round: int) -> ImageView | None:
    """The samples that a client's upload of a round is made of; None where the probe does not know."""
    if isinstance(half, FedL2GClient):
        return half.study_batch(round)
    return half.client.train_set if isinstance(half, FedProtoClient | FedDistillClient) else None


def sample_areas(
    half: ClientHalf[Any], members: ImageView, others: ImageView, sent: Payload, upload: Payload
) -> list[float]:
    """The area of each row of an upload for whose class there are members and others."""
    from sklearn.metrics import roc_auc_score

    rows = ClassTargets(upload, half.client)
    inside, inside_labels = _scores(half, members, sent, rows)
    outside, outside_labels = _scores(half, others, sent, rows)
    areas = []
    for label in upload["ids"].tolist():
        a, b = inside[inside_labels == label], outside[outside_labels == label]
        if len(a) and len(b):
            truth = torch.cat([torch.ones(len(a)), torch.zeros(len(b))])
            areas.append(float(roc_auc_score(truth, torch.cat([a, b]))))
    return areas


def _scores(half: ClientHalf[Any], samples: ImageView, sent: Payload, rows: ClassTargets) -> tuple[Tensor, Tensor]:
    """How well each of these samples, of classes that were sent, fits to its class's row; and their labels."""
    known = rows.known.cpu()[samples.labels[samples.indices]]
    x, y = samples.batch(known.nonzero().flatten()[:MOST_SAMPLES])
    if not len(y):
        return torch.zeros(0), y.cpu()
    training = half.model.training
    half.model.eval()  # with the statistics of all data: those of one sample say nothing
    try:
        alone = _guiding_gradients(half, x, y, sent) if isinstance(half, FedL2GClient) else _vectors(half, x)
    finally:
        half.model.train(training)
    alone, target = alone.double(), rows.vectors[y].double()
    similar = isinstance(half, FedL2GClient)
    found = cosine_similarity(alone, target, dim=1) if similar else -torch.linalg.vector_norm(alone - target, dim=1)
    return found.cpu(), y.cpu()


def _vectors(half: ClientHalf[Any], x: Tensor) -> Tensor:
    with torch.no_grad():
        features, logits = half.model(x)
    vectors: Tensor = features if isinstance(half, FedProtoClient) else logits
    return vectors


def _guiding_gradients(half: FedL2GClient, x: Tensor, y: Tensor, sent: Payload) -> Tensor:
    guide = ClassTargets(sent, half.client).vectors
    quiz = half.quiz_set.batch(torch.arange(len(half.quiz_set)))
    lr, space = half.client.task.client_lr, half.options.space
    one = [guiding_gradient(half.model, (x[i : i + 1], y[i : i + 1]), quiz, guide, lr=lr, space=space)[1][0]
           for i in range(len(y))]  # fmt: skip
    return torch.stack(one)
