"""The dataset type used throughout the package: one memory-mapped array of images, shared by all clients."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

META_FILE, IMAGES_FILE, LABELS_FILE, DOMAINS_FILE = "meta.json", "images.npy", "labels.npy", "domains.npy"


@dataclass(frozen=True, eq=False)
class Dataset:
    """All images of a dataset, pooled, with their labels; opened read-only from a cache folder."""

    name: str
    images: NDArray[np.uint8] = field(repr=False)
    """(N, C, H, W), a read-only memory map: processes that open the same folder share its pages."""
    labels: NDArray[np.int64] = field(repr=False)
    class_names: tuple[str, ...] = field(repr=False)
    domains: NDArray[np.int64] | None = field(repr=False)
    """The index of each image's domain in `domain_names`, or None for a dataset without domains."""
    domain_names: tuple[str, ...]
    fingerprint: str
    """SHA-256 over pixels, labels and domains: equal fingerprints mean equal data."""
    folder: Path | None = field(default=None, repr=False)
    """The cache folder it was opened from; `Dataset.open` returns the same dataset in any process."""

    @property
    def classes(self) -> int:
        """The number of classes, including those without a sample in a subset."""
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        _, channels, height, width = self.images.shape
        return channels, height, width

    def __len__(self) -> int:
        return len(self.labels)

    def __reduce__(self) -> str | tuple[Any, ...]:
        # Pickled as the path of its folder, not as a copy of its pixels.
        return super().__reduce__() if self.folder is None else (Dataset.open, (self.folder,))

    @classmethod
    def open(cls, folder: Path) -> Dataset:
        """Open a cache folder; raises OSError, ValueError or another error if it is incomplete or damaged.

        Everything but the pixels is checked: reading those would defeat the purpose of the cache.
        """
        meta = json.loads((folder / META_FILE).read_text(encoding="utf-8"))
        if not isinstance(meta, dict):
            raise ValueError(f"{folder / META_FILE} is not a JSON object")
        for file, size in meta["file_sizes"].items():
            if (folder / file).stat().st_size != size:
                raise ValueError(f"{folder / file} is not {size} bytes long")
        images = np.load(folder / IMAGES_FILE, mmap_mode="r", allow_pickle=False)
        labels = np.load(folder / LABELS_FILE, allow_pickle=False)
        domains = np.load(folder / DOMAINS_FILE, allow_pickle=False) if DOMAINS_FILE in meta["file_sizes"] else None
        if images.dtype != np.uint8 or images.ndim != 4:
            raise ValueError(f"{folder} has no images")
        class_names, domain_names = tuple(meta["class_names"]), tuple(meta["domain_names"])
        texts = (meta["name"], meta["fingerprint"], *class_names, *domain_names)
        if not all(isinstance(text, str) for text in texts) or len(meta["fingerprint"]) != 64:
            raise ValueError(f"{folder / META_FILE} has names that are not text, or no fingerprint")
        for small, names in ((labels, class_names), (domains, domain_names)):
            if small is not None:
                if small.dtype != np.int64 or small.shape != images.shape[:1] or not len(small):
                    raise ValueError(f"{folder} does not have one whole number for each image")
                if small.min() < 0 or small.max() >= len(names):
                    raise ValueError(f"{folder} has a label or domain without a name")
                small.flags.writeable = False
        return cls(
            name=meta["name"],
            images=images,
            labels=labels,
            class_names=class_names,
            domains=domains,
            domain_names=domain_names,
            fingerprint=meta["fingerprint"],
            folder=folder,
        )


@dataclass(frozen=True)
class Content:
    """What a source yields: all labels, and the pixels in batches, so that a dataset need not fit in memory."""

    image_shape: tuple[int, int, int]
    images: Iterable[NDArray[np.uint8]] = field(repr=False)
    """Batches (n, C, H, W), in the order of `labels`."""
    labels: NDArray[np.int64] = field(repr=False)
    class_names: tuple[str, ...] = field(repr=False)
    domains: NDArray[np.int64] | None = None
    domain_names: tuple[str, ...] = ()
