"""Validation samples: a share of each client's train side, which choose the best round instead of the test samples."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedl2g import rng
from fedl2g.datasets.groups import Indices
from fedl2g.datasets.partition import Partition
from fedl2g.errors import DataError


def hold_out(partition: Partition, labels: NDArray[Any], fraction: float, seed: int) -> Partition:
    """Move this share of every client's train samples to its validation set: at least one, at least one stays.

    The choice is stratified by class, as far as whole samples allow: a class gets its share rounded down, and what
    is left goes to the classes with the largest remainders; a class with a single sample gives it only if no other can.
    Each client draws from a random stream of its own, so that a site can split its own data. A client without any
    sample here (of another site) stays empty.
    """
    train, validation = [], []
    for client, held in enumerate(partition.train):
        if len(held) == 1:
            raise DataError(
                f"validation_fraction: client {client} has a single train sample; expected at least 2, one for "
                "training and one for validation; use fewer clients, more samples or validation_fraction = 0"
            )
        chosen = _stratified(np.asarray(labels)[held], fraction, rng.numpy_stream(seed, "validation", client))
        validation.append(held[chosen])
        train.append(held[~chosen])
    return Partition(tuple(train), partition.test, tuple(validation))


def _stratified(labels: Indices, fraction: float, random: np.random.Generator) -> NDArray[np.bool_]:
    """Which of these samples are for validation."""
    chosen = np.zeros(len(labels), dtype=bool)
    if not len(labels):
        return chosen
    count = min(max(round(fraction * len(labels)), 1), len(labels) - 1)
    _, numbers, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    exact = sizes * count / len(labels)
    shares = np.floor(exact).astype(np.int64)
    by_remainder = np.lexsort((shares - exact, sizes == 1))
    shares[by_remainder[: count - shares.sum()]] += 1
    for number, share in enumerate(shares):
        chosen[random.permutation(np.flatnonzero(numbers == number))[:share]] = True
    return chosen
