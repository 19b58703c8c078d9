"""A user's own data: an .npz file, or a Python function."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedl2g.datasets.arrays import KEYS, content_of_arrays, reading_arrays
from fedl2g.datasets.dataset import Content
from fedl2g.errors import DataError
from fedl2g.references import load_reference
from fedl2g.schema import Schema


def read_npz(path: Path, image_size: int | None, wanted: Schema | None = None) -> Content:
    """Read an .npz file with `images` or `inputs`, `labels` and optionally groups, a split and names; see `KEYS`."""
    try:
        with reading_arrays(), path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            found = {key: arrays[key] for key in arrays.files if key in KEYS}
    except Exception as error:  # numpy and zipfile raise many kinds of errors on damaged files
        raise DataError(
            f"{path}: cannot be read as an .npz file of plain arrays ({error}); write it with "
            "numpy.savez(path, images=..., labels=...)"
        ) from error
    for key, array in found.items():
        if not isinstance(array, np.ndarray):  # numpy returns raw bytes for other members
            raise DataError(f"{path}: {key!r} is not an array; write the file with numpy.savez")
    return content_of_arrays(found, str(path), image_size, wanted)


def call_function(name: str) -> dict[str, NDArray[Any]]:
    """Call the user's function and return its arrays; its module may be in the current folder."""
    function = load_reference(name)
    if not callable(function):
        raise DataError(f"dataset: {name} is not a function; expected one that returns (images, labels)")
    try:
        returned = function()
    except Exception as error:  # whatever the user's code raises, the name of the function belongs in the message
        raise DataError(f"dataset: the function {name} failed ({type(error).__name__}: {error}); correct it") from error
    if isinstance(returned, Mapping) and all(isinstance(key, str) for key in returned):
        named = dict(returned)
    elif isinstance(returned, tuple) and len(returned) in (2, 3):
        named = dict(zip(("inputs", "labels", "domains"), returned, strict=False))
    else:
        raise DataError(
            f"dataset: the function {name} returned the wrong form; expected (inputs, labels), (inputs, labels, "
            "domains), or a dictionary of arrays with the names of an .npz file"
        )
    try:
        arrays = {key: np.asarray(value) for key, value in named.items() if key in KEYS}
    except ValueError as error:  # lists of unequal lengths
        raise DataError(
            f"dataset: the return value of the function {name} cannot be converted to arrays ({error}); "
            "return arrays of one shape each"
        ) from error
    return arrays
