"""The datasets known by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from fedl2g.data.cache import Progress
from fedl2g.data.dataset import Content

Reader: TypeAlias = Callable[[int, Path, Progress | None], Content]
"""Reads a dataset at an image size from a downloads folder, fetching what is missing."""


@dataclass(frozen=True)
class NamedDataset:
    """What there is to know about a dataset before it is loaded."""

    name: str
    description: str
    images: int
    classes: int
    image_size: int
    download_megabytes: int
    read: Reader


def read_digits(size: int, downloads: Path, progress: Progress | None) -> Content:
    """scikit-learn's digits, which come with it: 8 x 8 pixels of 0..16, enlarged, in three equal channels.

    Nearest-neighbour enlargement keeps every pixel an exact block (x 4 at 32 px), the same under any Pillow version.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    grey = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    source = np.arange(size) * grey.shape[1] // size
    enlarged = grey[:, source][:, :, source]
    return Content(
        image_shape=(3, size, size),
        images=[np.repeat(enlarged[:, None], 3, axis=1)],
        labels=bunch.target.astype(np.int64),
        class_names=tuple(str(digit) for digit in range(10)),
    )


CATALOGUE = {
    entry.name: entry
    for entry in (
        NamedDataset("digits", "handwritten digits of scikit-learn, no download", 1797, 10, 32, 0, read_digits),
    )
}
