"""Data given as arrays: stored once by content in the cache, and opened from there by its name `in-memory:KEY`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from numpy.typing import NDArray

from fedl2g.datasets.arrays import content_of_arrays, digest_of_arrays
from fedl2g.datasets.cache import cache_folder, cache_key, open_or_build
from fedl2g.datasets.dataset import Dataset
from fedl2g.errors import DataError

PREFIX = "in-memory:"  # the hyphen keeps it from being a reference to Python code


def store_arrays(
    arrays: Mapping[str, NDArray[Any]], name: str, *, image_size: int | None = None, data_dir: Path | None = None
) -> Dataset:
    """Store checked arrays in the cache unless they are there already."""
    key = cache_key(name, [digest_of_arrays(arrays), image_size])
    return open_or_build(name, key, cache_folder(data_dir), partial(content_of_arrays, arrays, name, image_size))


def name_of(dataset: Dataset) -> str:
    """The name under which `load_dataset` opens stored arrays again, in any process of this machine."""
    if dataset.folder is None:
        raise DataError("dataset: it was not opened from the cache; make it with fedl2g.data(images, labels)")
    return PREFIX + dataset.folder.name


def key_of(name: str) -> str:
    """The cache key of stored arrays."""
    return Path(name.removeprefix(PREFIX)).name


def not_stored(name: str, folder: Path) -> NoReturn:
    """Raise the error for arrays that the cache does not hold."""
    raise DataError(
        f"dataset: {name!r} is not in the cache {folder}; call fedl2g.data(images, labels) with the same arrays again"
    )
