"""A folder of images: one folder per class, perhaps below folders of domains or of a given split."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from fedl2g.datasets.dataset import Content
from fedl2g.datasets.images import ImageFile, decode_images
from fedl2g.errors import DataError
from fedl2g.schema import image_schema

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
        schema=image_schema(3, size, size),
        inputs=decode_images(files, size),
        labels=np.array(labels, dtype=np.int64),
        class_names=class_names,
        groups=np.array(domains, dtype=np.int64) if domain_names else None,
        group_names=domain_names,
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
