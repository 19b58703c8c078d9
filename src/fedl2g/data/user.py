"""A user's own data: an .npz file, a folder of images, or a Python function."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedl2g.data.dataset import Content
from fedl2g.data.images import ImageFile, decode_images, resize_images
from fedl2g.errors import DataError
from fedl2g.references import load_reference

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
FOLDER_IMAGE_SIZE = 64
"""Pixels a side for a folder of images, which come in all sizes, where the user names no size."""


def file_identity(path: Path) -> list[Any]:
    """What tells an unchanged file or folder from a changed one without reading it: path, sizes and times."""
    listing = hashlib.sha256()
    for file in _files_below(path) if path.is_dir() else [path]:
        try:
            status = file.stat()
        except OSError as error:
            raise DataError(f"{file} cannot be read ({error}); repair or remove it.") from error
        listing.update(f"{file.relative_to(path)}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return [str(path), listing.hexdigest()]


def read_npz(path: Path, image_size: int | None) -> Content:
    """An .npz file with `images`, `labels` and perhaps `domains`, `class_names` and `domain_names`."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = {key: arrays[key] for key in arrays.files if key in _KEYS}
    except Exception as error:  # numpy and zipfile answer what a file may hold with errors of many kinds
        raise DataError(
            f"{path} cannot be read as an .npz file of plain arrays ({error}); write it with "
            "numpy.savez(path, images=..., labels=...)."
        ) from error
    for key, array in found.items():
        if not isinstance(array, np.ndarray):  # numpy gives the bytes of what is no array
            raise DataError(f"{path} holds a {key!r} that is no array; write it with numpy.savez.")
    return content_of_arrays(found, str(path), image_size)


def call_function(name: str) -> dict[str, NDArray[Any]]:
    """The arrays that the user's function returns; the module may lie in the current folder."""
    function = load_reference(name)
    if not callable(function):
        raise DataError(f"dataset: {name} is not a function; expected one that returns (images, labels)")
    try:
        returned = function()
    except Exception as error:  # whatever the user's code raises, the name of the function belongs in the message
        raise DataError(f"dataset: the function {name} failed ({type(error).__name__}: {error})") from error
    if not isinstance(returned, tuple) or len(returned) not in (2, 3):
        raise DataError(f"The dataset function {name} must return (images, labels) or (images, labels, domains).")
    try:
        return dict(zip(("images", "labels", "domains"), map(np.asarray, returned), strict=False))
    except ValueError as error:  # lists of unequal lengths
        raise DataError(f"What the dataset function {name} returns cannot be made arrays ({error}).") from error


def digest_of_arrays(arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 of arrays: the identity of data that comes from no file."""
    digest = hashlib.sha256()
    for key in sorted(arrays):
        digest.update(f"{key}{arrays[key].dtype}{arrays[key].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[key]).tobytes())
    return digest.hexdigest()


_KEYS = ("images", "labels", "domains", "class_names", "domain_names")


def content_of_arrays(arrays: Mapping[str, NDArray[Any]], origin: str, image_size: int | None) -> Content:
    """Check a user's arrays and bring them to the package's form."""
    for key in ("images", "labels"):
        if key not in arrays:
            raise DataError(f"{origin} has no array named {key!r}; it must hold 'images' and 'labels'.")
    images = _images(arrays["images"], origin)
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


def _images(images: NDArray[Any], origin: str) -> NDArray[np.uint8]:
    if images.dtype != np.uint8:
        raise DataError(
            f"{origin} has images of type {images.dtype}, but they must be uint8 with values from 0 to 255; convert "
            "them (a 0..1 float image: (images * 255).round().astype('uint8'))."
        )
    if images.ndim not in (3, 4) or 0 in images.shape:
        raise DataError(
            f"{origin} has images of shape {images.shape}, but they must be N x H x W or N x H x W x C and not empty."
        )
    if images.ndim == 3:
        return images[:, None]
    if images.shape[3] > 4:
        raise DataError(
            f"{origin} has images of shape {images.shape}, with {images.shape[3]} channels in the last place, but 1 to "
            "4 are possible; if they are N x C x H x W, transpose them: images.transpose(0, 2, 3, 1)."
        )
    return images.transpose(0, 3, 1, 2)


def _numbered(
    values: NDArray[Any], names: NDArray[Any] | None, key: str, count: int, origin: str
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Labels or domains as 0..K-1 with a name each: given ones, else the text or number found in the data."""
    if values.shape != (count,):
        raise DataError(
            f"{origin} has {key} of shape {values.shape}, but for its {count} images it must be ({count},)."
        )
    if values.dtype.kind == "U" and names is None:
        found, numbers = np.unique(values, return_inverse=True)
        return numbers.astype(np.int64), _texts(found, key, origin)
    if values.dtype.kind not in "iu":
        raise DataError(f"{origin} has {key} of type {values.dtype}, but they must be whole numbers from 0 on.")
    if values.min() < 0:
        raise DataError(
            f"{origin} has negative {key} (such as {values.min()}), but they must be whole numbers from 0 on."
        )
    if names is None:
        found, numbers = np.unique(values, return_inverse=True)
        return numbers.astype(np.int64), tuple(str(value) for value in found.tolist())
    if names.ndim != 1 or names.dtype.kind != "U":
        raise DataError(f"{origin} has names for its {key} that are not a plain array of text; store them as strings.")
    if values.max() >= len(names):
        raise DataError(
            f"{origin} has {key} up to {values.max()}, but only {len(names)} names for them (0 to {len(names) - 1}); "
            "name every one or leave the names out."
        )
    return values.astype(np.int64), _texts(names, key, origin)


def _texts(names: NDArray[Any], key: str, origin: str) -> tuple[str, ...]:
    try:
        return tuple(names.tolist())
    except (ValueError, SystemError) as error:  # bytes in the file that are no characters
        raise DataError(f"{origin} has names for its {key} that are not text ({error}); store them anew.") from error


def read_folder(root: Path, image_size: int | None) -> Content:
    """A folder of images: ROOT/class/image, or ROOT/domain/class/image for data with domains."""
    size = image_size or FOLDER_IMAGE_SIZE
    groups: dict[tuple[str, ...], list[Path]] = {}
    for file in _files_below(root):
        groups.setdefault(file.relative_to(root).parts[:-1], []).append(file)
    depths = {len(place) for place in groups}
    if depths not in ({1}, {2}):
        found = "no images" if not groups else f"images {' and '.join(map(str, sorted(depths)))} folders deep"
        raise DataError(
            f"{root} has {found}; expected one folder of images for each class, or one folder for each domain that "
            f"holds one folder for each class (images end in {', '.join(sorted(IMAGE_SUFFIXES))})."
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


def _files_below(root: Path) -> list[Path]:
    """All image files below a folder, in one order on every machine; hidden files and folders are passed over."""
    found = []
    for folder, folders, files in os.walk(root, followlinks=True):
        # One level deeper than any layout is enough to notice a wrong one, and ends at links that lead in circles.
        deep = len(Path(folder).relative_to(root).parts) > 2
        folders[:] = [] if deep else sorted(name for name in folders if not name.startswith("."))
        found += [
            Path(folder, name)
            for name in sorted(files)
            if not name.startswith(".") and Path(name).suffix.lower() in IMAGE_SUFFIXES
        ]
    return found
