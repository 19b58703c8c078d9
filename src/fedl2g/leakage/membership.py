"""Sample membership: does an upload tell whether a given sample was in it?

The attacker is stronger than the server: it has the client's network as it was after the round, its quiz set, what the
server sent, and a sample with its label. It computes what the client would upload if this sample were all it had, and
compares that with the row that was sent for the sample's class. What it compares depends on what the rows are, which
the method's traits say (`Traits.vectors`):

    features, logits     minus the distance between the row and the sample's features, or logits
    guiding gradients    the cosine between the row and the sample's own guiding gradient

The score of a row is the area under the ROC curve of "this sample was in the upload": members are the client's training
samples of the class (for guiding gradients those of the round's study batch), the others its test samples of the class.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from fedl2g.learning.guidance import guiding_gradient
from fedl2g.learning.training import ImageView
from fedl2g.methods.base import AnyClientHalf, Vectors
from fedl2g.methods.class_means import ClassTargets
from fedl2g.payload import Payload

MOST_SAMPLES = 40  # that are tried on an upload, of each kind


@runtime_checkable
class Guided(Protocol):
    """What a client's half must offer for its guiding gradients to be probed; its options must have a `space`."""

    quiz_set: ImageView
    options: Any

    def study_batch(self, round: int) -> ImageView:
        """The samples of the pseudo-step of a round."""


def members_of(half: AnyClientHalf, vectors: Vectors, round: int) -> ImageView | None:
    """The samples that a client's upload of a round is made of; None where that is not known."""
    if vectors == "guiding gradients":
        return half.study_batch(round) if isinstance(half, Guided) else None
    return half.client.train_set if vectors else None


def sample_areas(
    half: AnyClientHalf, vectors: Vectors, members: ImageView, others: ImageView, sent: Payload, upload: Payload
) -> list[float]:
    """The area of each row of an upload for whose class there are members and others."""
    from sklearn.metrics import roc_auc_score

    rows = ClassTargets(upload, half.client)
    inside, inside_labels = _scores(half, vectors, members, sent, rows)
    outside, outside_labels = _scores(half, vectors, others, sent, rows)
    areas = []
    for label in upload["ids"].tolist():
        a, b = inside[inside_labels == label], outside[outside_labels == label]
        if len(a) and len(b):
            truth = torch.cat([torch.ones(len(a)), torch.zeros(len(b))])
            areas.append(float(roc_auc_score(truth, torch.cat([a, b]))))
    return areas


def _scores(
    half: AnyClientHalf, vectors: Vectors, samples: ImageView, sent: Payload, rows: ClassTargets
) -> tuple[Tensor, Tensor]:
    """How well each of these samples, of classes that were sent, fits its class's row; and their labels."""
    known = rows.known.cpu()[samples.labels[samples.indices]]
    x, y = samples.batch(known.nonzero().flatten()[:MOST_SAMPLES])
    if not len(y):
        return torch.zeros(0), y.cpu()
    target = rows.vectors[y].double()
    training = half.model.training
    half.model.eval()  # with the statistics of all data: those of one sample say nothing
    try:
        if vectors == "guiding gradients":
            found = cosine_similarity(_guiding_gradients(half, x, y, sent).double(), target, dim=1)
        else:
            with torch.no_grad():
                features, logits = half.model(x)
            alone = features if vectors == "features" else logits
            found = -torch.linalg.vector_norm(alone.double() - target, dim=1)
    finally:
        half.model.train(training)
    return found.cpu(), y.cpu()


def _guiding_gradients(half: AnyClientHalf, x: Tensor, y: Tensor, sent: Payload) -> Tensor:
    """The guiding gradient of each sample alone."""
    assert isinstance(half, Guided)
    guide = ClassTargets(sent, half.client).vectors
    quiz = half.quiz_set.batch(torch.arange(len(half.quiz_set)))
    lr, space = half.client.task.client_lr, half.options.space
    one = [guiding_gradient(half.model, (x[i : i + 1], y[i : i + 1]), quiz, guide, lr=lr, space=space)[1][0]
           for i in range(len(y))]  # fmt: skip
    return torch.stack(one)
