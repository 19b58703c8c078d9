"""A user's arrays as samples: which kind they are, and whether they are valid samples of that kind."""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedl2g.datasets.dataset import Content, Scaling
from fedl2g.datasets.images import resize_images
from fedl2g.datasets.sides import split_numbers
from fedl2g.datasets.text import encode, longest, text_schema
from fedl2g.errors import DataError, choices
from fedl2g.schema import KINDS, PLURALS, VOCABULARY, Column, Kind, Schema, image_schema

KEYS = (
    "images", "inputs", "labels", "domains", "groups", "class_names", "domain_names", "group_names", "split", "kind",
    "columns", "mean", "std",
)  # fmt: skip
"""The arrays that are read; others in a file are ignored."""
_PIXELS = ("uint8", "uint16", "float32")
_MAX_CHANNELS = 4
LARGEST = float(np.finfo(np.float32).max)
"""The largest number that can be stored."""
FILLED = (
    "a missing number becomes the mean of the client's own train samples, a missing category is a category of its own"
)
"""What replaces missing values, as said in messages."""
_log = logging.getLogger(__name__)


def digest_of_arrays(arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 of arrays: the cache identity of data that does not come from a file."""
    digest = hashlib.sha256()
    for key in sorted(arrays):
        digest.update(f"{key}{arrays[key].dtype}{arrays[key].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[key]).tobytes())
    return digest.hexdigest()


@contextmanager
def reading_arrays() -> Iterator[None]:
    """Without warnings: numpy reads the header of an array as Python code, and Python warns of a damaged one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def content_of_arrays(
    arrays: Mapping[str, NDArray[Any]], origin: str, image_size: int | None, wanted: Schema | None = None
) -> Content:
    """Check a user's arrays and convert them to the package's form.

    `wanted` is the schema that samples must have in a deployment: texts get its number of tokens, columns its names.
    """
    if "labels" not in arrays or ("images" in arrays) == ("inputs" in arrays):
        missing = "labels" if "labels" not in arrays else "images"
        found = (
            "both 'images' and 'inputs'" if "inputs" in arrays and "images" in arrays else f"no array named {missing!r}"
        )
        raise DataError(
            f"{origin}: it has {found}; expected 'images' and 'labels', or 'inputs' and 'labels' for other kinds"
        )
    kind = kind_of_arrays(arrays, origin)
    if image_size is not None and kind != "image":
        raise DataError(f"image_size: {origin} holds {PLURALS[kind]}, which have no size in pixels; leave it out")
    samples = arrays["images"] if "images" in arrays else arrays["inputs"]
    if wanted is not None and wanted.kind != kind:
        raise DataError(f"{origin}: holds {PLURALS[kind]}; expected {PLURALS[wanted.kind]}")
    if kind == "image":
        content = _images(samples, arrays, origin, image_size)
    elif kind == "signal":
        content = _signals(samples, origin)
    elif kind == "table":
        content = _table(samples, arrays, origin, wanted)
    else:
        content = _texts(samples, origin, wanted)
    labels, class_names = numbered(arrays["labels"], arrays.get("class_names"), "labels", len(samples), origin)
    content = replace(content, labels=labels, class_names=class_names)
    for key, names, column in (("domains", "domain_names", "domain"), ("groups", "group_names", "group")):
        if key in arrays:
            if content.groups is not None:
                raise DataError(f"{origin}: it has both 'domains' and 'groups'; give one of them")
            groups, group_names = numbered(arrays[key], arrays.get(names), key, len(samples), origin)
            content = replace(content, groups=groups, group_names=group_names, group_column=column)
    if "split" in arrays:
        content = replace(content, split=split_numbers(arrays["split"], len(samples), origin))
    return content


def kind_of_arrays(arrays: Mapping[str, NDArray[Any]], origin: str) -> Kind:
    """The kind that a file names in `kind`, else the one its inputs look like.

    An array `images` holds images. An array `inputs` of strings holds texts; of two dimensions, a table; of four,
    images; of three, signals, or images if its type is uint8 or uint16.
    """
    if "kind" in arrays:
        given = str(arrays["kind"])
        for kind in KINDS:
            if kind == given:
                return kind
        raise DataError(f"{origin}: its kind is {given!r}; {choices(given, KINDS)}")
    if "images" in arrays:
        return "image"
    inputs = arrays["inputs"]
    if inputs.dtype.kind == "U" and inputs.ndim == 1:
        return "text"
    if inputs.dtype.kind in "iufb" and inputs.ndim in (2, 3, 4):
        signal: Kind = "image" if inputs.dtype in (np.uint8, np.uint16) else "signal"
        return ("table", signal, "image")[inputs.ndim - 2]
    raise DataError(
        f"{origin}: its inputs are of type {inputs.dtype} and shape {inputs.shape}; expected images (N x H x W or "
        "N x H x W x C), signals (N x channels x time), a table of numbers (N x columns), or N texts"
    )


def images_of_array(images: NDArray[Any], origin: str, *, scaled: bool = False) -> NDArray[Any]:
    """Check a user's array of images, N x H x W or N x H x W x C; returns N x C x H x W.

    They are uint8, uint16, or fractions from 0 to 1; with `scaled` (mean and std are given) fractions of any size.
    """
    if images.dtype.kind == "f":
        images = images.astype(np.float32)
        if not np.isfinite(images).all() or (not scaled and images.size and (images.min() < 0 or images.max() > 1)):
            raise DataError(
                f"{origin}: its images have values from {images.min():g} to {images.max():g}; expected fractions "
                "from 0 to 1, or uint8 or uint16; scale them, or store 'mean' and 'std' of each channel beside them"
            )
    if images.dtype not in _PIXELS:
        raise DataError(
            f"{origin}: its images are of type {images.dtype}; expected uint8 with values from 0 to 255, uint16, or "
            "fractions from 0 to 1; convert them (images.astype('uint8'))"
        )
    if images.ndim not in (3, 4) or 0 in images.shape:
        raise DataError(
            f"{origin}: its images are of shape {images.shape}; expected N x H x W or N x H x W x C, not empty"
        )
    if images.ndim == 3:
        return images[:, None]
    if images.shape[3] > _MAX_CHANNELS:
        raise DataError(
            f"{origin}: its images are of shape {images.shape}, with {images.shape[3]} channels in the last dimension; "
            "expected 1 to 4; if they are N x C x H x W, transpose them: images.transpose(0, 2, 3, 1)"
        )
    return images.transpose(0, 3, 1, 2)


def _images(samples: NDArray[Any], arrays: Mapping[str, NDArray[Any]], origin: str, size: int | None) -> Content:
    given = [arrays[key] for key in ("mean", "std") if key in arrays]
    images = images_of_array(samples, origin, scaled=len(given) == 2)
    scaling = None
    if given:
        numbers = [tuple(np.atleast_1d(array).astype(float).tolist()) for array in given]
        if len(numbers) != 2 or {len(one) for one in numbers} != {images.shape[1]} or min(numbers[1]) <= 0:
            raise DataError(
                f"{origin}: its 'mean' and 'std' do not fit; expected both, with one number for each of the "
                f"{images.shape[1]} channels, and every std above 0"
            )
        scaling = Scaling(*numbers)
    height, width = (size, size) if size else images.shape[2:]
    return Content(
        image_schema(images.shape[1], height, width),
        resize_images(images, size),
        *_UNLABELLED,
        dtype=str(images.dtype),
        scaling=scaling,
    )


def _stored(samples: NDArray[Any]) -> NDArray[np.float32]:
    """Numbers as they are stored; those that are too large become infinite, which the caller refuses."""
    with np.errstate(over="ignore"):
        return samples.astype(np.float32)


def _signals(samples: NDArray[Any], origin: str) -> Content:
    if samples.ndim != 3 or 0 in samples.shape or samples.dtype.kind not in "iuf":
        raise DataError(
            f"{origin}: its signals are of type {samples.dtype} and shape {samples.shape}; expected numbers of shape "
            "N x channels x time"
        )
    values = _stored(samples)
    if not np.isfinite(values).all():
        raise DataError(
            f"{origin}: its signals have values that are missing, infinite or larger than {LARGEST:.1e}; fill them in "
            "first (for example by interpolation)"
        )
    return Content(Schema("signal", values.shape[1:]), [values], *_UNLABELLED, dtype="float32")


def _table(
    samples: NDArray[Any], arrays: Mapping[str, NDArray[Any]], origin: str, wanted: Schema | None = None
) -> Content:
    if samples.ndim != 2 or 0 in samples.shape or samples.dtype.kind not in "iufb":
        raise DataError(
            f"{origin}: its table is of type {samples.dtype} and shape {samples.shape}; expected numbers of shape "
            "N x columns; give columns of text in a CSV file"
        )
    values = _stored(samples)
    if np.isinf(values).any():
        raise DataError(
            f"{origin}: its table has numbers that are infinite, or larger than {LARGEST:.1e}; replace them, or leave "
            "them missing (NaN)"
        )
    if missing := int(np.isnan(values).sum()):
        _log.warning("%s: %d values are missing (NaN); %s", origin, missing, FILLED)
    unnamed = [column.name for column in wanted.columns] if wanted else [str(n) for n in range(values.shape[1])]
    names = arrays["columns"].astype(np.str_).tolist() if "columns" in arrays else unnamed
    if np.shape(names) != (values.shape[1],) or len(set(names)) < len(names):
        raise DataError(
            f"{origin}: it has the names {', '.join(map(str, names[:5]))}{' ...' if len(names) > 5 else ''} for "
            f"{values.shape[1]} columns; expected a different one for each of them"
        )
    columns = tuple(Column(str(name)) for name in names)
    return Content(Schema("table", (len(columns),), columns), [values], *_UNLABELLED, dtype="float32")


def _texts(samples: NDArray[Any], origin: str, wanted: Schema | None = None) -> Content:
    if samples.ndim == 1 and samples.dtype.kind == "U" and len(samples):
        return text_content(_strings(samples, "inputs", origin), wanted)
    if samples.ndim != 2 or 0 in samples.shape or samples.dtype.kind not in "iu" or samples.min() < 0:
        raise DataError(
            f"{origin}: its texts are of type {samples.dtype} and shape {samples.shape}; expected N texts, or token "
            "ids of shape N x tokens, filled with 0"
        )
    ids = samples.astype(np.int32)
    used = ids > 0
    if not used[:, 0].all() or (used[:, 1:] & ~used[:, :-1]).any():
        raise DataError(f"{origin}: a text has no token id, or one after its padding; expected 0 only at the end")
    schema = Schema("text", ids.shape[1:], vocabulary=int(ids.max()) + 1)
    if wanted is not None:
        if ids.max() >= wanted.vocabulary:
            raise DataError(f"{origin}: it has the token id {ids.max()}; expected ids below {wanted.vocabulary}")
        schema, width = wanted, wanted.shape[0]
        ids = np.pad(ids, ((0, 0), (0, max(width - ids.shape[1], 0))))[:, :width]
    return Content(schema, [ids], *_UNLABELLED, dtype="int32")


def text_content(texts: list[str], wanted: Schema | None = None) -> Content:
    """Texts as hashed token ids, without their labels yet; `wanted` fixes the number of tokens."""
    if wanted is not None and wanted.vocabulary != VOCABULARY:
        raise DataError(
            f"texts: they would become token ids below {VOCABULARY}; expected ids below {wanted.vocabulary}; give the "
            "ids themselves, in an .npz file"
        )
    width = longest(texts) if wanted is None else wanted.shape[0]
    return Content(text_schema(width), encode(texts, width), *_UNLABELLED, dtype="int16")


_UNLABELLED: tuple[NDArray[np.int64], tuple[str, ...]] = (np.empty(0, dtype=np.int64), ())


def numbered(
    values: NDArray[Any], names: NDArray[Any] | None, key: str, count: int, origin: str
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Labels or groups as 0..K-1 with their names: the given ones, else the texts or numbers in the data."""
    if values.shape != (count,):
        raise DataError(f"{origin}: its {key} are of shape {values.shape}; expected ({count},) for its {count} samples")
    if values.dtype.kind == "U" and names is None:
        found, numbers = np.unique(values, return_inverse=True)
        return numbers.astype(np.int64), tuple(_strings(found, key, origin))
    if values.dtype.kind not in "iu":
        raise DataError(
            f"{origin}: its {key} are of type {values.dtype}; expected whole numbers of at least 0, or text; convert "
            f"them ({key}.astype(int))"
        )
    if values.min() < 0:
        raise DataError(
            f"{origin}: it has negative {key} (such as {values.min()}); expected whole numbers of at least 0"
        )
    if names is None:
        found, numbers = np.unique(values, return_inverse=True)
        return numbers.astype(np.int64), tuple(str(value) for value in found.tolist())
    if names.ndim != 1 or names.dtype.kind != "U":
        raise DataError(
            f"{origin}: the names of its {key} are not a one-dimensional array of text; store them as strings"
        )
    if values.max() >= len(names):
        raise DataError(
            f"{origin}: it has {key} up to {values.max()}, but only {len(names)} names for them (0 to "
            f"{len(names) - 1}); name all of them or leave the names out"
        )
    return values.astype(np.int64), tuple(_strings(names, key, origin))


def _strings(names: NDArray[Any], key: str, origin: str) -> list[str]:
    try:
        return [str(name) for name in names.tolist()]
    except (ValueError, SystemError) as error:  # invalid character codes in the file
        raise DataError(f"{origin}: the names of its {key} are not text ({error}); store them again") from error
