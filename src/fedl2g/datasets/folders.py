"""A folder of images: one folder per class, perhaps below folders of domains or of a given split."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedl2g.datasets.dataset import Content
from fedl2g.datasets.images import MODES, ImageFile, Mode, decode_images, mode_of
from fedl2g.datasets.sides import SIDE_WORDS, sides_of, tells_sides
from fedl2g.errors import DataError
from fedl2g.schema import image_schema

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
FOLDER_IMAGE_SIZE = 64
"""Default image size for a folder of images, which may have any size."""


def file_identity(path: Path, *, everything: bool = False) -> list[Any]:
    """A cache identity of a file or folder that changes with it, without reading it: path, sizes and times.

    Of a folder its images count, or with `everything` all files.
    """
    listing = hashlib.sha256()
    files = sorted(file for file in path.rglob("*") if file.is_file()) if everything else image_files(path)
    for file in files if path.is_dir() else [path]:
        try:
            status = file.stat()
        except OSError as error:
            raise DataError(f"{file}: cannot be read ({error}); repair or remove it") from error
        if not stat.S_ISREG(status.st_mode):  # reading a FIFO or a device may never end
            raise DataError(f"{file}: is not a file; remove it")
        listing.update(f"{file.relative_to(path)}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return [str(path), listing.hexdigest()]


def read_folder(root: Path, image_size: int | None, channels: int | None = None) -> Content:
    """Read a folder of images: ROOT/class/image, or ROOT/domain/class/image for data with domains.

    Above them there may be folders `train` and `test` (and `validation`): a given split. Images that are all grey have
    one channel, all others three, unless the number of channels is given.
    """
    size = image_size or FOLDER_IMAGE_SIZE
    groups: dict[tuple[str, ...], list[Path]] = {}
    for file in image_files(root):
        groups.setdefault(file.relative_to(root).parts[:-1], []).append(file)
    split = _is_split(groups)
    depths = {len(place) - split for place in groups}
    if depths not in ({1}, {2}):
        found = "no images" if not groups else f"images {' and '.join(map(str, sorted(depths)))} folders deep"
        raise DataError(
            f"{root}: it has {found}; expected one folder of images per class, or one folder per domain with one "
            f"folder per class in it, perhaps below train and test (images end in {', '.join(sorted(IMAGE_SUFFIXES))})"
        )
    class_names = tuple(sorted({place[-1] for place in groups}))
    domain_names = tuple(sorted({place[split] for place in groups})) if depths == {2} else ()
    files: list[ImageFile] = []
    labels, domains, sides = [], [], []
    for place, members in sorted(groups.items()):
        files += [(str(file), file.read_bytes) for file in members]
        labels += [class_names.index(place[-1])] * len(members)
        domains += [domain_names.index(place[split])] * len(members) if domain_names else []
        sides += [place[0]] * len(members) if split else []
    mode = _mode([file for members in groups.values() for file in members], channels, root)
    return Content(
        schema=image_schema(3 if mode == "RGB" else 1, size, size),
        inputs=decode_images(files, size, mode),
        labels=np.array(labels, dtype=np.int64),
        class_names=class_names,
        groups=np.array(domains, dtype=np.int64) if domain_names else None,
        group_names=domain_names,
        split=sides_of(sides, str(root)) if split else None,
        dtype="uint16" if mode == "I;16" else "uint8",
    )


def _is_split(places: Iterable[tuple[str, ...]]) -> bool:
    """Whether the upper folders are the sides of a split; without folders in them they are classes."""
    names = {place[0].lower() if len(place) > 1 else "" for place in places}
    return len(names) > 1 and "" not in names and 0 in map(SIDE_WORDS.get, names) and tells_sides(names)


def _mode(files: Sequence[Path], channels: int | None, root: Path) -> Mode:
    """What the images are read as: in colour or grey as the channels say, if they are given."""
    found = mode_of(files)
    if channels is None or (found == "I;16" and channels == 1):
        return found
    if channels not in MODES or found == "I;16":
        has = "images of 16 bits, which have 1 channel" if found == "I;16" else "images of 1 or 3 channels"
        raise DataError(f"{root}: holds {has}; expected {channels} channels; give the images as an array (.npz)")
    return MODES[channels]


def image_files(root: Path) -> list[Path]:
    """All image files below a folder, in the same order on every machine; hidden files and folders are skipped."""
    found = []
    for folder, folders, files in os.walk(root, followlinks=True):
        # One level deeper than any valid layout is enough to detect a wrong one, and stops at circular links.
        deep = len(Path(folder).relative_to(root).parts) > 3
        folders[:] = [] if deep else sorted(name for name in folders if not name.startswith("."))
        found += [
            Path(folder, name)
            for name in sorted(files)
            if not name.startswith(".") and Path(name).suffix.lower() in IMAGE_SUFFIXES
        ]
    return found
