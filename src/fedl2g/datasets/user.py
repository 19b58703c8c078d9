"""A user's own data: an .npz file, a folder of images, or a Python function."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedl2g.datasets.dataset import Content
from fedl2g.datasets.images import ImageFile, decode_images, resize_images
from fedl2g.errors import DataError
from fedl2g.references import load_reference

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
FOLDER_IMAGE_SIZE = 64
"""Default image size for a folder of images, which may have any size."""


def file_identity(path: Path) -> list[Any]:
    """A cache identity of a file or folder that changes with it, without reading it: path, sizes and times."""
    listing = hashlib.sha256()
    for file in image_files(path) if path.is_dir() else [path]:
        try:
            status = file.stat()
        except OSError as error:
            raise DataError(f"{file}: cannot be read ({error}); repair or remove it") from error
        listing.update(f"{file.relative_to(path)}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return [str(path), listing.hexdigest()]


def read_npz(path: Path, image_size: int | None) -> Content:
    """Read an .npz file with `images`, `labels` and optionally `domains`, `class_names` and `domain_names`."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = {key: arrays[key] for key in arrays.files if key in _KEYS}
    except Exception as error:  # numpy and zipfile raise many kinds of errors on damaged files
        raise DataError(
            f"{path}: cannot be read as an .npz file of plain arrays ({error}); write it with "
            "numpy.savez(path, images=..., labels=...)"
        ) from error
    for key, array in found.items():
        if not isinstance(array, np.ndarray):  # numpy returns raw bytes for other members
            raise DataError(f"{path}: {key!r} is not an array; write the file with numpy.savez")
    return content_of_arrays(found, str(path), image_size)


def call_function(name: str) -> dict[str, NDArray[Any]]:
    """Call the user's function and return its arrays; its module may be in the current folder."""
    function = load_reference(name)
    if not callable(function):
        raise DataError(f"dataset: {name} is not a function; expected one that returns (images, labels)")
    try:
        returned = function()
    except Exception as error:  # whatever the user's code raises, the name of the function belongs in the message
        raise DataError(f"dataset: the function {name} failed ({type(error).__name__}: {error})") from error
    if not isinstance(returned, tuple) or len(returned) not in (2, 3):
        raise DataError(
            f"dataset: the function {name} returned the wrong form; it must return (images, labels) or "
            "(images, labels, domains)"
        )
    try:
        return dict(zip(("images", "labels", "domains"), map(np.asarray, returned), strict=False))
    except ValueError as error:  # lists of unequal lengths
        raise DataError(
            f"dataset: the return value of the function {name} cannot be converted to arrays ({error})"
        ) from error


def digest_of_arrays(arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 of arrays: the cache identity of data that does not come from a file."""
    digest = hashlib.sha256()
    for key in sorted(arrays):
        digest.update(f"{key}{arrays[key].dtype}{arrays[key].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[key]).tobytes())
    return digest.hexdigest()


_KEYS = ("images", "labels", "domains", "class_names", "domain_names")


def content_of_arrays(arrays: Mapping[str, NDArray[Any]], origin: str, image_size: int | None) -> Content:
    """Check a user's arrays and convert them to the package's form."""
    for key in ("images", "labels"):
        if key not in arrays:
            raise DataError(f"{origin}: it has no array named {key!r}; expected 'images' and 'labels'")
    images = images_of_array(arrays["images"], origin)
    labels, class_names = _numbered(arrays["labels"], arrays.get("class_names"), "labels", len(images), origin)
    domains: NDArray[np.int64] | None = None
    domain_names: tuple[str, ...] = ()
    if "domains" in arrays:
        domains, domain_names = _numbered(arrays["domains"], arrays.get("domain_names"), "domains", len(images), origin)
    height, width = (image_size, image_size) if image_size else images.shape[2:]
    return Content(
        image_shape=(images.shape[1], height, width),
        images=resize_images(images, image_size),
        labels=labels,
        class_names=class_names,
        domains=domains,
        domain_names=domain_names,
    )


def images_of_array(images: NDArray[Any], origin: str) -> NDArray[np.uint8]:
    """Check a user's array of images, N x H x W or N x H x W x C; returns N x C x H x W."""
    if images.dtype != np.uint8:
        raise DataError(
            f"{origin}: its images are of type {images.dtype}; expected uint8 with values from 0 to 255; convert them "
            "(from 0..1 floats: (images * 255).round().astype('uint8'))"
        )
    if images.ndim not in (3, 4) or 0 in images.shape:
        raise DataError(
            f"{origin}: its images are of shape {images.shape}; expected N x H x W or N x H x W x C, not empty"
        )
    if images.ndim == 3:
        return images[:, None]
    if images.shape[3] > 4:
        raise DataError(
            f"{origin}: its images are of shape {images.shape}, with {images.shape[3]} channels in the last dimension; "
            "expected 1 to 4; if they are N x C x H x W, transpose them: images.transpose(0, 2, 3, 1)"
        )
    return images.transpose(0, 3, 1, 2)


def _numbered(
    values: NDArray[Any], names: NDArray[Any] | None, key: str, count: int, origin: str
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Labels or domains as 0..K-1 with their names: the given ones, else the texts or numbers in the data."""
    if values.shape != (count,):
        raise DataError(f"{origin}: its {key} are of shape {values.shape}; expected ({count},) for its {count} images")
    if values.dtype.kind == "U" and names is None:
        found, numbers = np.unique(values, return_inverse=True)
        return numbers.astype(np.int64), _texts(found, key, origin)
    if values.dtype.kind not in "iu":
        raise DataError(f"{origin}: its {key} are of type {values.dtype}; expected whole numbers of at least 0")
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
    return values.astype(np.int64), _texts(names, key, origin)


def _texts(names: NDArray[Any], key: str, origin: str) -> tuple[str, ...]:
    try:
        return tuple(names.tolist())
    except (ValueError, SystemError) as error:  # invalid character codes in the file
        raise DataError(f"{origin}: the names of its {key} are not text ({error}); store them again") from error


def read_folder(root: Path, image_size: int | None) -> Content:
    """Read a folder of images: ROOT/class/image, or ROOT/domain/class/image for data with domains."""
    size = image_size or FOLDER_IMAGE_SIZE
    groups: dict[tuple[str, ...], list[Path]] = {}
    for file in image_files(root):
        groups.setdefault(file.relative_to(root).parts[:-1], []).append(file)
    depths = {len(place) for place in groups}
    if depths not in ({1}, {2}):
        found = "no images" if not groups else f"images {' and '.join(map(str, sorted(depths)))} folders deep"
        raise DataError(
            f"{root}: it has {found}; expected one folder of images per class, or one folder per domain with one "
            f"folder per class in it (images end in {', '.join(sorted(IMAGE_SUFFIXES))})"
        )
    class_names = tuple(sorted({place[-1] for place in groups}))
    domain_names = tuple(sorted({place[0] for place in groups})) if depths == {2} else ()
    files: list[ImageFile] = []
    labels, domains = [], []
    for place, members in sorted(groups.items()):
        files += [(str(file), file.read_bytes) for file in members]
        labels += [class_names.index(place[-1])] * len(members)
        domains += [domain_names.index(place[0])] * len(members) if domain_names else []
    return Content(
        image_shape=(3, size, size),
        images=decode_images(files, size),
        labels=np.array(labels, dtype=np.int64),
        class_names=class_names,
        domains=np.array(domains, dtype=np.int64) if domain_names else None,
        domain_names=domain_names,
    )


def image_files(root: Path) -> list[Path]:
    """All image files below a folder, in the same order on every machine; hidden files and folders are skipped."""
    found = []
    for folder, folders, files in os.walk(root, followlinks=True):
        # One level deeper than any valid layout is enough to detect a wrong one, and stops at circular links.
        deep = len(Path(folder).relative_to(root).parts) > 2
        folders[:] = [] if deep else sorted(name for name in folders if not name.startswith("."))
        found += [
            Path(folder, name)
            for name in sorted(files)
            if not name.startswith(".") and Path(name).suffix.lower() in IMAGE_SUFFIXES
        ]
    return found
