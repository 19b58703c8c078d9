"""Scores of predictions other than accuracy, from counts per class: cheap enough for every evaluation.

They are scikit-learn's `balanced_accuracy_score` and `f1_score(average="macro")`, and a test compares them; calling
these for every client in every round would take longer than evaluating a small network.
"""

from __future__ import annotations

import torch
from torch import Tensor


def balanced_accuracy_and_f1(labels: Tensor, predicted: Tensor) -> tuple[float, float]:
    """The mean recall over the classes with samples, and the mean F1 over the classes with samples or predictions."""
    classes = int(torch.maximum(labels.max(), predicted.max())) + 1
    right = torch.bincount(labels[labels == predicted], minlength=classes).double()
    samples, guesses = (torch.bincount(found, minlength=classes).double() for found in (labels, predicted))
    present, seen = samples > 0, samples + guesses > 0
    return (
        float((right[present] / samples[present]).mean()),
        float((2 * right[seen] / (samples + guesses)[seen]).mean()),
    )
