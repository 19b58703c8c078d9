"""The sides of a given split by the words that data use for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedl2g.datasets.dataset import SIDES
from fedl2g.errors import DataError

SIDE_WORDS: Mapping[str, int] = {
    **{side: number for number, side in enumerate(SIDES)}, "training": 0, "testing": 1, "val": 2, "valid": 2, "dev": 2,
}  # fmt: skip
"""The numbers of the sides by name."""


def split_numbers(values: NDArray[Any], count: int, origin: str) -> NDArray[np.int64]:
    """An array of the words train, test and validation as numbers of `SIDES`."""
    if values.shape != (count,):
        raise DataError(f"{origin}: its split is of shape {values.shape}; expected ({count},) for its {count} samples")
    return sides_of([str(value) for value in values.tolist()], origin)


def sides_of(words: Iterable[str], origin: str) -> NDArray[np.int64]:
    """The numbers of sides by name; DataError for an unknown one, and for a split without train or test samples."""
    lowered = [word.lower() for word in words]
    if wrong := next((word for word in lowered if word not in SIDE_WORDS), None):
        raise DataError(f"{origin}: its split has {wrong!r}; expected train, test or validation for every sample")
    numbers = np.array([SIDE_WORDS[word] for word in lowered], dtype=np.int64)
    for side in SIDES[:2]:
        if not (numbers == SIDES.index(side)).any():
            raise DataError(
                f"{origin}: its split has no {side} samples; expected train and test (validation may be absent); mark "
                f"some samples as {side}, or leave the split out"
            )
    return numbers


def tells_sides(words: Iterable[str]) -> bool:
    """Whether these words tell a split: train and another side are among them, or nothing but names of sides."""
    lowered = {word.lower() for word in words}
    sides = {SIDE_WORDS[word] for word in lowered & SIDE_WORDS.keys()}
    return lowered <= SIDE_WORDS.keys() or (0 in sides and len(sides) > 1)
