"""Sample membership inference: does an upload reveal whether a given sample was used for it?

The attacker is stronger than the server: it has the client's network after the round, its quiz set, the broadcast, and
a sample with its label. It computes the upload of a client with this sample only, and compares it with the uploaded row
of the sample's class. The score depends on what the rows are (`Traits.vectors`):

    features, logits     minus the distance between the row and the sample's features, or logits
    guiding gradients    the cosine between the row and the sample's own guiding gradient

The result for a row is the area under the ROC curve of "this sample was used for the upload": members are the client's
training samples of the class (for guiding gradients those of the round's study batch), non-members its test samples.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from fedl2g.learning.guidance import guiding_gradient
from fedl2g.learning.training import SampleView
from fedl2g.methods.base import AnyClientHalf, Vectors
from fedl2g.methods.class_means import ClassTargets
from fedl2g.payload import Payload

MAX_SAMPLES = 40  # scored per upload, of members and of non-members


@runtime_checkable
class Guided(Protocol):
    """The interface of a client half whose guiding gradients can be probed; its options have a `space`."""

    quiz_set: SampleView
    options: Any

    def study_batch(self, round: int) -> SampleView:
        """The samples of the pseudo-step of a round."""


def members_of(half: AnyClientHalf, vectors: Vectors, round: int) -> SampleView | None:
    """The samples from which a client computed its upload of a round; None if unknown."""
    if vectors == "guiding gradients":
        return half.study_batch(round) if isinstance(half, Guided) else None
    return half.client.train_set if vectors else None


def sample_areas(
    half: AnyClientHalf, vectors: Vectors, members: SampleView, others: SampleView, sent: Payload, upload: Payload
) -> list[float]:
    """The AUC of each row of an upload whose class has members and non-members."""
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
    half: AnyClientHalf, vectors: Vectors, samples: SampleView, sent: Payload, rows: ClassTargets
) -> tuple[Tensor, Tensor]:
    """The scores and labels of the samples whose classes were uploaded."""
    known = rows.known.cpu()[samples.labels[samples.indices]]
    x, y = samples.batch(known.nonzero().flatten()[:MAX_SAMPLES])
    if not len(y):
        return torch.zeros(0), y.cpu()
    target = rows.vectors[y].double()
    training = half.model.training
    half.model.eval()  # use running statistics: those of a single sample are meaningless
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
    """The guiding gradient of each single sample."""
    assert isinstance(half, Guided)
    guide = ClassTargets(sent, half.client).vectors
    quiz = half.quiz_set.batch(torch.arange(len(half.quiz_set)))
    lr, space = half.client.task.client_lr, half.options.space
    one = [guiding_gradient(half.model, (x[i : i + 1], y[i : i + 1]), quiz, guide, lr=lr, space=space)[1][0]
           for i in range(len(y))]  # fmt: skip
    return torch.stack(one)
