"""Balanced accuracy and macro-F1 from counts per class are scikit-learn's."""

from __future__ import annotations

import warnings

import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score

from fedl2g.learning.scores import balanced_accuracy_and_f1


@pytest.mark.parametrize(("samples", "classes", "shown"), [(1, 5, 5), (7, 3, 2), (40, 10, 4), (500, 20, 20)])
def test_they_are_those_of_scikit_learn(samples: int, classes: int, shown: int) -> None:
    """Also where some classes have no samples, or are predicted without having any."""
    stream = torch.Generator().manual_seed(samples)
    for _ in range(10):
        labels = torch.randint(shown, (samples,), generator=stream)
        predicted = torch.randint(classes, (samples,), generator=stream)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            expected = balanced_accuracy_score(labels, predicted), f1_score(labels, predicted, average="macro")
        assert balanced_accuracy_and_f1(labels, predicted) == pytest.approx(expected, abs=1e-12)


def test_by_hand() -> None:
    """Recall 1/2 and 1; F1 of class 0 is 2/3, of class 1 is 2/3, of class 2, predicted without samples, 0."""
    labels, predicted = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1])
    assert balanced_accuracy_and_f1(labels, predicted) == pytest.approx((0.75, 2 / 3))
    labels, predicted = torch.tensor([0, 0, 1]), torch.tensor([0, 2, 1])
    assert balanced_accuracy_and_f1(labels, predicted) == pytest.approx((0.75, (2 / 3 + 1 + 0) / 3))
