"""Data of this session: stored once by content in the cache, and opened from there by its name `in-memory:KEY`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from numpy.typing import NDArray

from fedl2g.datasets.arrays import content_of_arrays, digest_of_arrays
from fedl2g.datasets.cache import cache_folder, cache_key, open_or_build
from fedl2g.datasets.dataset import Dataset
from fedl2g.datasets.tables import Roles, content_of_frame, named_by_text
from fedl2g.errors import DataError

if TYPE_CHECKING:
    from pandas import DataFrame

PREFIX = "in-memory:"  # the hyphen keeps it from being a reference to Python code


def store_arrays(
    arrays: Mapping[str, NDArray[Any]], name: str, *, image_size: int | None = None, data_dir: Path | None = None
) -> Dataset:
    """Store checked arrays in the cache unless they are there already."""
    key = cache_key(name, [digest_of_arrays(arrays), image_size])
    return open_or_build(name, key, cache_folder(data_dir), partial(content_of_arrays, arrays, name, image_size))


def store_frame(frame: DataFrame, roles: Roles, name: str, *, data_dir: Path | None = None) -> Dataset:
    """Store the rows of a table in the cache unless they are there already."""
    frame = named_by_text(frame, name)
    key = cache_key(name, [_digest_of_frame(frame), roles.to_json()])
    return open_or_build(name, key, cache_folder(data_dir), partial(content_of_frame, frame, roles, name))


def _digest_of_frame(frame: DataFrame) -> str:
    names = json.dumps([[str(name), str(kind)] for name, kind in frame.dtypes.items()])
    texts = frame.astype("string").to_csv(index=False)
    return hashlib.sha256(f"{names}\n{texts}".encode()).hexdigest()


def name_of(dataset: Dataset) -> str:
    """The name under which `load_dataset` opens stored arrays again, in any process of this machine."""
    if dataset.folder is None:
        raise DataError("dataset: was not opened from the cache; make it with fedl2g.data(inputs, labels)")
    return PREFIX + dataset.folder.name


def key_of(name: str) -> str:
    """The cache key of stored arrays."""
    return Path(name.removeprefix(PREFIX)).name


def not_stored(name: str, folder: Path) -> NoReturn:
    """Raise the error for arrays that the cache does not hold."""
    raise DataError(
        f"dataset: {name!r} is not in the cache {folder}; call fedl2g.data(inputs, labels) with the same data again"
    )
