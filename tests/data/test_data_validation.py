"""Validation samples come from each client's train side, stratified, at least one."""

from __future__ import annotations

import numpy as np
import pytest

from fedl2g.datasets import Partition
from fedl2g.datasets.validation import hold_out
from fedl2g.errors import DataError


def partition_of(*sizes: int) -> Partition:
    ends = np.cumsum(sizes)
    train = tuple(np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True))
    return Partition(train, tuple(np.array([ends[-1] + n]) for n in range(len(sizes))))


def held_classes(partition: Partition, labels: np.ndarray, client: int, classes: int) -> list[int]:
    return np.bincount(labels[partition.validation[client]], minlength=classes).tolist()


def test_every_class_gives_its_share() -> None:
    """20, 10 and 10 samples at a quarter: 5, 2.5 and 2.5, of which ten samples can only give 5, 3 and 2."""
    labels = np.array([0] * 20 + [1] * 10 + [2] * 10 + [0])
    found = hold_out(partition_of(40), labels, 0.25, seed=3)
    assert held_classes(found, labels, 0, 3) in ([5, 3, 2], [5, 2, 3])
    assert sorted([*found.train[0], *found.validation[0]]) == list(range(40))
    assert [len(part) for part in found.test] == [1]


def test_a_class_with_one_sample_gives_it_only_if_no_other_can() -> None:
    labels = np.array([0] * 9 + [1] + [0])
    for seed in range(20):
        assert held_classes(hold_out(partition_of(10), labels, 0.3, seed), labels, 0, 2) == [3, 0]
    labels = np.array([0, 1, 0])  # two samples of two classes: one of them must go
    assert sum(held_classes(hold_out(partition_of(2), labels, 0.5, 0), labels, 0, 2)) == 1


@pytest.mark.parametrize(("size", "fraction", "expected"), [(2, 0.01, 1), (50, 0.01, 1), (2, 0.99, 1), (50, 0.5, 25)])
def test_at_least_one_sample_on_either_side(size: int, fraction: float, expected: int) -> None:
    labels = np.zeros(size + 1, dtype=int)
    assert len(hold_out(partition_of(size), labels, fraction, 0).validation[0]) == expected


def test_a_client_with_one_sample_is_refused_in_one_sentence() -> None:
    with pytest.raises(
        DataError, match=r"validation_fraction: client 1 has a single train sample; expected at least 2"
    ):
        hold_out(partition_of(5, 1), np.zeros(8, dtype=int), 0.2, 0)


def test_a_client_chooses_by_itself() -> None:
    """The choice of a client depends on its own samples, the seed and its number alone: a site can make it."""
    labels = np.tile([0, 1], 40)
    alone = Partition((np.arange(0), np.arange(20, 50)), (np.arange(0), np.array([79])))
    together = hold_out(partition_of(20, 30), labels, 0.2, 5)
    assert hold_out(alone, labels, 0.2, 5).validation[1].tolist() == together.validation[1].tolist()
    assert hold_out(alone, labels, 0.2, 6).validation[1].tolist() != together.validation[1].tolist()
    assert len(hold_out(alone, labels, 0.2, 5).validation[0]) == 0
