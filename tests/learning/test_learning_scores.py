"""Balanced accuracy and macro-F1 of many clients in one call are what scikit-learn says of each client alone."""

from __future__ import annotations

import warnings

import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score

from fedl2g.learning.scores import balanced_accuracy_and_f1


@pytest.mark.parametrize(("samples", "classes", "shown"), [(1, 5, 5), (7, 3, 2), (40, 10, 4), (500, 20, 20)])
def test_each_client_has_its_own(samples: int, classes: int, shown: int) -> None:
    """Also where some classes have no samples, or are predicted without having any."""
    stream = torch.Generator().manual_seed(samples)
    sizes = [samples + number % 3 for number in range(10)]
    labels = [torch.randint(shown, (size,), generator=stream) for size in sizes]
    predicted = [torch.randint(classes, (size,), generator=stream) for size in sizes]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        expected = [
            (balanced_accuracy_score(truth, guesses), f1_score(truth, guesses, average="macro"))
            for truth, guesses in zip(labels, predicted, strict=True)
        ]
    found = balanced_accuracy_and_f1(labels, predicted, classes)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-12)
    for number in range(10):  # bit by bit: engines evaluate the clients together in different ways
        assert balanced_accuracy_and_f1(labels[number:], predicted[number:], classes) == found[number:]


def test_by_hand() -> None:
    """Recall 1/2 and 1; F1 of class 0 is 2/3, of class 1 is 2/3, of class 2, predicted without samples, 0."""
    labels, predicted = torch.tensor([0, 0, 1]), [torch.tensor([0, 1, 1]), torch.tensor([0, 2, 1])]
    first, second = balanced_accuracy_and_f1([labels, labels], predicted, 4)
    assert first == pytest.approx((0.75, 2 / 3))
    assert second == pytest.approx((0.75, (2 / 3 + 1 + 0) / 3))
