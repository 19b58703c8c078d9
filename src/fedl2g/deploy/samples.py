"""The samples of a file or folder in the form that an exported model takes, for every kind of data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedl2g.datasets.arrays import images_of_array, reading_arrays
from fedl2g.datasets.folders import image_files
from fedl2g.datasets.images import BATCH, MODES, Mode, decode_images, resize_images
from fedl2g.datasets.kinds import TABLES
from fedl2g.datasets.tables import column, encode_rows, joined_texts, read_frame
from fedl2g.datasets.text import encode
from fedl2g.errors import DataError
from fedl2g.files import reason_of
from fedl2g.schema import PLURALS, VOCABULARY, Schema

Samples = tuple[list[str], Iterator[NDArray[Any]]]
"""Names, and the samples in batches."""
_ARRAYS = (".npy", ".npz")
_FILES = {
    "image": "image files, or an array in a .npy or .npz file",
    "signal": "an array N x channels x time in a .npy or .npz file",
    "table": "a CSV or parquet file, or an array N x columns in a .npy or .npz file",
    "text": "a .txt file with a text on each line, a CSV or parquet file, or an array in a .npy or .npz file",
}


@dataclass(frozen=True)
class Form:
    """What a model takes: the schema of a sample, the type of its pixels, and the columns that hold its texts."""

    inputs: Schema
    pixels: str = "uint8"
    scaled: bool = False
    text: tuple[str, ...] = ()


def read_samples(source: Path, form: Form) -> Samples:
    """The names and the samples of a file or folder; DataError unless the model takes them."""
    suffix, kind = source.suffix.lower(), form.inputs.kind
    if not source.exists():
        raise DataError(f"{source}: no such file or folder; expected {_FILES[kind]}")
    if suffix in _ARRAYS:
        return _of_array(source, form)
    if kind == "image":
        return _of_pictures(source, form)
    if suffix in TABLES and kind == "table":
        rows = encode_rows(read_frame(source), form.inputs, str(source), unknown=True)
        return _numbered([rows], len(rows))
    if suffix in TABLES and kind == "text":
        return _of_texts(_texts_of(source, form.text), form, source)
    if suffix == ".txt" and kind == "text":
        try:
            return _of_texts(source.read_text(encoding="utf-8").splitlines(), form, source)
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{source}: cannot be read ({reason_of(error)}); expected texts in UTF-8") from error
    raise DataError(f"{source}: the model takes {PLURALS[kind]}; expected {_FILES[kind]}")


def _of_pictures(source: Path, form: Form) -> Samples:
    files = image_files(source) if source.is_dir() else [source]
    if not files:
        raise DataError(f"{source}: holds no images; expected {_FILES['image']}")
    channels, height, width = form.inputs.shape
    if height != width or channels not in MODES or form.pixels == "float32":
        raise DataError(
            f"{source}: the model takes images of {channels} x {height} x {width}"
            f"{' with fractions as pixels' if form.pixels == 'float32' else ''}; give them as an array in a .npy file"
        )
    mode: Mode = "I;16" if form.pixels == "uint16" else MODES[channels]
    names = [str(file.relative_to(source)) if source.is_dir() else file.name for file in files]
    return names, decode_images([(str(file), file.read_bytes) for file in files], height, mode)


def _of_array(source: Path, form: Form) -> Samples:
    inputs = form.inputs
    array = _load(source, "images" if inputs.kind == "image" else "inputs")
    if inputs.kind == "image":
        return _of_pixels(array, source, form)
    if inputs.kind == "text" and array.dtype.kind == "U" and array.ndim == 1:
        return _of_texts(array.tolist(), form, source)
    if array.dtype.kind not in "iufb" or array.shape[1:] != inputs.shape or not len(array):
        raise DataError(
            f"{source}: its array is of type {array.dtype} and shape {array.shape}; expected numbers of shape "
            f"(N, {', '.join(map(str, inputs.shape))})"
        )
    if inputs.kind == "text" and (array.min() < 0 or array.max() >= inputs.vocabulary):
        raise DataError(f"{source}: has token ids that the model does not know; expected 0 to {inputs.vocabulary - 1}")
    for position, categories in enumerate(inputs.categories):
        if categories and not np.isin(array[:, position], np.arange(categories)).all():
            name = inputs.columns[position].name
            raise DataError(
                f"{source}: the column {name!r} has unknown categories; expected numbers from 0 to {categories - 1}"
            )
    return _numbered([array], len(array))


def _load(source: Path, name: str) -> NDArray[Any]:
    try:
        with reading_arrays(), source.open("rb") as file:
            found = np.load(file, allow_pickle=False)
            array = found if isinstance(found, np.ndarray) else found[name]
        if not isinstance(array, np.ndarray):  # numpy returns raw bytes for other members
            raise ValueError("not an array")
    except Exception as error:  # numpy and zipfile raise many kinds of errors on damaged files
        raise DataError(
            f"{source}: cannot be read ({reason_of(error)}); expected an array, in .npz by the name {name!r}"
        ) from error
    return array


def _of_pixels(array: NDArray[Any], source: Path, form: Form) -> Samples:
    shape = form.inputs.shape
    images = images_of_array(array, str(source), scaled=form.scaled)
    if str(images.dtype) != form.pixels:
        raise DataError(f"{source}: its images are of type {images.dtype}; the model expects {form.pixels}")
    if images.shape[1] != shape[0]:
        raise DataError(f"{source}: the channels of its images are {images.shape[1]}; the model expects {shape[0]}")
    if images.shape[1:] != shape and shape[1] != shape[2]:
        raise DataError(f"{source}: its images are of shape {images.shape[1:]}; the model expects {shape}")
    square = None if images.shape[1:] == shape else shape[1]
    return [str(n) for n in range(len(images))], (
        np.ascontiguousarray(batch) for batch in resize_images(images, square)
    )


def _texts_of(source: Path, columns: tuple[str, ...]) -> list[str]:
    frame = read_frame(source)
    if not columns and len(frame.columns) > 1:
        raise DataError(
            f"{source}: it has the columns {', '.join(map(str, frame.columns))}, and the model names none of them; "
            "expected a single one, or name those with the text (--text COLUMN)"
        )
    for name in columns:
        column(frame, name, "text", str(source))
    return joined_texts(frame, columns or (str(frame.columns[0]),))


def _of_texts(texts: Sequence[str], form: Form, source: Path) -> Samples:
    if form.inputs.vocabulary != VOCABULARY:
        raise DataError(
            f"{source}: the model takes token ids of its own vocabulary; give them as an array in a .npy file"
        )
    return _numbered(encode(texts, form.inputs.shape[0]), len(texts))


def _numbered(batches: Iterable[NDArray[Any]], count: int) -> Samples:
    """Samples whose names are their numbers, in batches of a bounded size."""
    pieces = (batch[start : start + BATCH] for batch in batches for start in range(0, len(batch), BATCH))
    return [str(number) for number in range(count)], pieces
