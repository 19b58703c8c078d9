"""Loading of datasets by name, path or function, through the cache."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedl2g.datasets.arrays import content_of_arrays, digest_of_arrays
from fedl2g.datasets.cache import Progress, cache_folder, cache_key, open_or_build
from fedl2g.datasets.dataset import Content, Dataset
from fedl2g.datasets.download import fetch
from fedl2g.datasets.folders import file_identity, read_folder
from fedl2g.datasets.hub import hub_identity, read_hub, short_name
from fedl2g.datasets.images import BATCH
from fedl2g.datasets.kinds import HUB, TABLES
from fedl2g.datasets.memory import PREFIX, key_of, not_stored
from fedl2g.datasets.named import CATALOG, NamedDataset
from fedl2g.datasets.tables import Roles, read_table
from fedl2g.datasets.user import call_function, read_npz
from fedl2g.errors import DataError, suggestion
from fedl2g.references import is_reference
from fedl2g.schema import PLURALS

SUBSET_SEED = 0


def dataset_names() -> tuple[str, ...]:
    """The names of the catalog's datasets."""
    return tuple(CATALOG)


def describe_datasets() -> tuple[NamedDataset, ...]:
    """The catalog's entries, with descriptions and sizes."""
    return tuple(CATALOG.values())


def load_dataset(
    name: str,
    *,
    samples: int | None = None,
    image_size: int | None = None,
    data_dir: Path | None = None,
    progress: Progress | None = None,
    roles: Roles | None = None,
) -> Dataset:
    """Load a dataset; on first use it is downloaded and decoded into the cache, later only opened.

    `name` is one of `dataset_names()`, the path of an .npz, CSV or parquet file or of a folder of images, or
    `package.module:function`.
    `samples` keeps that many of them: every class in proportion (rounded by largest remainder), drawn within each class
    by `RandomState(0)` in class order, and kept in the dataset's order; the same ones on every machine.
    `image_size` scales the images to squares of that many pixels; by default named datasets have the paper's size, .npz
    files and functions their own, folders 64.
    `data_dir` is the cache folder (else $FEDL2G_DATA, else the user's cache folder). `progress` is a callback for the
    activity, the amount done and the total. `roles` says which column of a CSV or parquet file is what.
    """
    if image_size is not None and image_size < 1:
        raise DataError(f"image_size: {image_size} is not allowed; expected at least 1")
    if samples is not None and samples < 1:
        raise DataError(f"samples: {samples} is not allowed; expected at least 1")
    folder = cache_folder(data_dir)
    roles = roles or Roles()
    short, key, build = _locate(name, image_size, folder, progress, roles)
    if roles.named and (name in CATALOG or not (name.startswith(HUB) or Path(name).suffix.lower() in TABLES)):
        raise DataError(
            f"{roles.named[0]}: {name} has no columns to choose from; expected a CSV or parquet file or hf:NAME; leave "
            "it out"
        )
    if samples is None:
        return open_or_build(short, key, folder, build, progress)

    def build_subset() -> Content:
        return _subset(open_or_build(short, key, folder, build, progress), samples)

    return open_or_build(short, f"{key}-{samples}-samples", folder, build_subset, progress)


def _locate(
    name: str, image_size: int | None, folder: Path, progress: Progress | None, roles: Roles
) -> tuple[str, str, Callable[[], Content]]:
    """A dataset's short name, its cache key, and a function that reads it."""
    inputs = roles.inputs
    if name in CATALOG:
        entry = CATALOG[name]
        if image_size is not None and entry.kind != "image":
            raise DataError(
                f"image_size: {name} holds {PLURALS[entry.kind]}, which have no size in pixels; leave it out"
            )
        size = image_size or entry.image_size
        key = cache_key(f"{name}-{size}px", [name, size, *([entry.version] if entry.version > 1 else ())])

        def build() -> Content:
            files = {file.name: fetch(file, folder / "downloads", progress) for file in entry.files}
            return entry.read(files, size)

        return name, key, build
    if name.startswith(PREFIX):
        if image_size is not None:
            raise DataError(
                "image_size: does not apply to stored arrays; give it with them: fedl2g.data(images, labels, "
                "image_size=...)"
            )
        return name, key_of(name), partial(not_stored, name, folder)
    if name.startswith(HUB):
        key = cache_key(short_name(name), [hub_identity(name), image_size, roles.to_json()])
        return short_name(name), key, partial(read_hub, name, image_size, roles, progress)
    if is_reference(name) and not Path(name).exists():
        arrays = call_function(name)
        key = cache_key(name, [digest_of_arrays(arrays), image_size, *([inputs.to_json()] if inputs else ())])
        return name, key, partial(content_of_arrays, arrays, name, image_size, inputs)
    path = Path(name).expanduser()
    if not name or not path.exists():
        raise DataError(
            f"dataset: {name!r} is not known; {suggestion(name, CATALOG)}expected one of {', '.join(CATALOG)}, an "
            "existing .npz, CSV or parquet file or folder of images, hf:NAME, or package.module:function"
        )
    path, suffix = path.resolve(), path.suffix.lower()
    if path.is_dir():
        channels = inputs.shape[0] if inputs is not None and inputs.kind == "image" else None
        key = cache_key(path.stem, [file_identity(path), image_size, channels, "kept channels, training, testing, dev"])
        return path.stem, key, partial(read_folder, path, image_size, channels)
    if suffix in TABLES:
        if image_size is not None:
            raise DataError(f"image_size: {name} is a table, which has no size in pixels; leave it out")
        key = cache_key(path.stem, [file_identity(path), roles.to_json(), "dev"])
        return path.stem, key, partial(read_table, path, roles)
    if suffix != ".npz":
        raise DataError(
            f"dataset: {name} is not of a known type; expected an .npz, CSV or parquet file or a folder of images"
        )
    key = cache_key(path.stem, [file_identity(path), image_size, *([inputs.to_json()] if inputs else ())])
    return path.stem, key, partial(read_npz, path, image_size, inputs)


def _subset(whole: Dataset, samples: int) -> Content:
    chosen = choose_samples(whole.labels, samples, whole.name)
    return Content(
        schema=whole.schema,
        inputs=(whole.inputs[chosen[start : start + BATCH]] for start in range(0, samples, BATCH)),
        labels=whole.labels[chosen],
        class_names=whole.class_names,
        groups=None if whole.groups is None else whole.groups[chosen],
        group_names=whole.group_names,
        group_column=whole.group_column,
        split=None if whole.split is None else whole.split[chosen],
        dtype=str(whole.inputs.dtype),
        scaling=whole.scaling,
    )


def choose_samples(labels: NDArray[np.int64], samples: int, name: str) -> NDArray[np.int64]:
    """The indices, ascending, of a class-stratified subset; see `load_dataset` for the rule."""
    if samples > len(labels):
        raise DataError(
            f"samples: {samples} is more than the {len(labels)} samples of {name}; lower it or leave it out"
        )
    sizes = np.bincount(labels)
    exact = sizes * samples / len(labels)
    shares = np.floor(exact).astype(np.int64)
    by_remainder = np.argsort(-(exact - shares), kind="stable")
    shares[by_remainder[: samples - shares.sum()]] += 1
    random = np.random.RandomState(SUBSET_SEED)
    drawn = [random.permutation(np.flatnonzero(labels == k))[:share] for k, share in enumerate(shares)]
    return np.sort(np.concatenate(drawn)).astype(np.int64)
