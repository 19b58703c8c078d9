"""The dataset type used throughout the package: one memory-mapped array of samples, shared by all clients."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedl2g.schema import Schema, image_schema

META_FILE, INPUTS_FILE, LABELS_FILE = "meta.json", "inputs.npy", "labels.npy"
GROUPS_FILE, SPLIT_FILE = "groups.npy", "split.npy"
_FORMER = {INPUTS_FILE: "images.npy", GROUPS_FILE: "domains.npy"}  # names in entries of earlier versions
SIDES = ("train", "test", "validation")
"""What the numbers of a given split mean."""


@dataclass(frozen=True)
class Scaling:
    """A given mean and standard deviation of each channel, used to scale images instead of their value range."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Dataset:
    """All samples of a dataset, pooled, with their labels; opened read-only from a cache folder."""

    name: str
    schema: Schema = field(repr=False)
    inputs: NDArray[Any] = field(repr=False)
    """(N, *schema.shape), a read-only memory map: processes that open the same folder share its pages."""
    labels: NDArray[np.int64] = field(repr=False)
    class_names: tuple[str, ...] = field(repr=False)
    groups: NDArray[np.int64] | None = field(repr=False)
    """The index of each sample's group in `group_names`, or None for a dataset without groups."""
    group_names: tuple[str, ...]
    fingerprint: str
    """SHA-256 over inputs, labels and groups: equal fingerprints mean equal data."""
    folder: Path | None = field(default=None, repr=False)
    """The cache folder it was opened from; `Dataset.open` returns the same dataset in any process."""
    group_column: str = field(default="domain", repr=False)
    """What the groups are: domains, subjects, hospitals."""
    split: NDArray[np.int64] | None = field(default=None, repr=False)
    """The side of each sample in `SIDES` where the data come with a split, else None."""
    scaling: Scaling | None = field(default=None, repr=False)

    @property
    def classes(self) -> int:
        """The number of classes, including those without a sample in a subset."""
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return self.schema.shape

    def __len__(self) -> int:
        return len(self.labels)

    def __reduce__(self) -> str | tuple[Any, ...]:
        # Pickled as the path of its folder, not as a copy of its samples.
        return super().__reduce__() if self.folder is None else (Dataset.open, (self.folder,))

    @classmethod
    def open(cls, folder: Path) -> Dataset:
        """Open a cache folder; raises OSError, ValueError or another error if it is incomplete or damaged.

        Everything but the inputs is checked: reading those would defeat the purpose of the cache.
        """
        meta = json.loads((folder / META_FILE).read_text(encoding="utf-8"))
        if not isinstance(meta, dict):
            raise ValueError(f"{folder / META_FILE} is not a JSON object")
        for file, size in meta["file_sizes"].items():
            if (folder / file).stat().st_size != size:
                raise ValueError(f"{folder / file} is not {size} bytes long")
        found = {file: _load(folder, file, meta["file_sizes"]) for file in (LABELS_FILE, GROUPS_FILE, SPLIT_FILE)}
        inputs, labels = _load(folder, INPUTS_FILE, meta["file_sizes"], mmap_mode="r"), found[LABELS_FILE]
        if inputs is None or labels is None or inputs.dtype != np.dtype(meta.get("dtype", "uint8")):
            raise ValueError(f"{folder} has no inputs or no labels")
        schema = Schema.from_json(meta["schema"]) if "schema" in meta else image_schema(*inputs.shape[1:])
        if inputs.shape[1:] != schema.shape:
            raise ValueError(f"{folder} has inputs of another shape than its schema")
        scaling = Scaling(*(tuple(map(float, given)) for given in meta["scaling"])) if meta.get("scaling") else None
        class_names, group_names = (
            tuple(meta["class_names"]),
            tuple(meta["group_names" if "group_names" in meta else "domain_names"]),
        )
        column = meta.get("group_column", "domain")
        texts = (meta["name"], meta["fingerprint"], column, *class_names, *group_names)
        if not all(isinstance(text, str) for text in texts) or len(meta["fingerprint"]) != 64:
            raise ValueError(f"{folder / META_FILE} has names that are not text, or no fingerprint")
        for file, names in ((LABELS_FILE, class_names), (GROUPS_FILE, group_names), (SPLIT_FILE, SIDES)):
            if (small := found[file]) is not None:
                if small.dtype != np.int64 or small.shape != inputs.shape[:1] or not len(small):
                    raise ValueError(f"{folder} does not have one whole number for each sample in {file}")
                if small.min() < 0 or small.max() >= len(names):
                    raise ValueError(f"{folder} has a number without a name in {file}")
                small.flags.writeable = False
        return cls(
            name=meta["name"],
            schema=schema,
            inputs=inputs,
            labels=labels,
            class_names=class_names,
            groups=found[GROUPS_FILE],
            group_names=group_names,
            fingerprint=meta["fingerprint"],
            folder=folder,
            group_column=column,
            split=found[SPLIT_FILE],
            scaling=scaling,
        )


def _load(folder: Path, file: str, present: dict[str, int], **how: Any) -> NDArray[Any] | None:
    """One array of an entry, perhaps under its former name; None if the entry has none."""
    for name in (file, _FORMER.get(file)):
        if name in present:
            array: NDArray[Any] = np.load(folder / name, allow_pickle=False, **how)
            return array
    return None


@dataclass(frozen=True)
class Content:
    """What a source yields: all labels, and the inputs in batches, so that a dataset need not fit in memory."""

    schema: Schema
    inputs: Iterable[NDArray[Any]] = field(repr=False)
    """Batches (n, *schema.shape), in the order of `labels`."""
    labels: NDArray[np.int64] = field(repr=False)
    class_names: tuple[str, ...] = field(repr=False)
    groups: NDArray[np.int64] | None = None
    group_names: tuple[str, ...] = ()
    group_column: str = "domain"
    split: NDArray[np.int64] | None = None
    dtype: str = "uint8"
    """The numpy type of the inputs."""
    scaling: Scaling | None = None
