"""Datasets of the Hugging Face hub, `hf:NAME[:SPLIT]`, and local folders in its formats; their code is never run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedl2g.datasets.cache import Progress
from fedl2g.datasets.dataset import Content
from fedl2g.datasets.folders import FOLDER_IMAGE_SIZE, file_identity
from fedl2g.datasets.images import decode_images, mode_and_size
from fedl2g.datasets.kinds import HUB
from fedl2g.datasets.sides import SIDE_WORDS
from fedl2g.datasets.tables import SPLIT, Roles, content_of_frame, labelled
from fedl2g.errors import DataError, choices
from fedl2g.files import reason_of
from fedl2g.schema import image_schema

if TYPE_CHECKING:
    import datasets
    from pandas import DataFrame


def hub_identity(name: str) -> list[Any]:
    """The cache identity of a dataset: its name and, for a local folder, its files."""
    place, _ = _place(name)
    return [name, file_identity(Path(place).expanduser(), everything=True) if Path(place).expanduser().is_dir() else ""]


def short_name(name: str) -> str:
    """The last part of a dataset's name, for titles."""
    return Path(_place(name)[0]).name


def read_hub(name: str, image_size: int | None, roles: Roles, progress: Progress | None = None) -> Content:
    """Read a dataset: its only split, the one that is named, or all of them as a given split."""
    place, wanted = _place(name)
    if progress is not None:
        progress(f"Loading {name}", 0, None)
    parts = _parts(_load(place, name), wanted, name)
    whole = _joined(parts, name)
    frame, features = _frame(whole, parts, roles), whole.features
    label = roles.label or _label(features, name)
    roles = replace(roles, label=label)
    images = [column for column, feature in features.items() if _type(feature) == "Image"]
    if images and not roles.text:
        if label not in frame:
            raise DataError(f"label: {name} has no column {label!r}; {choices(label, list(frame.columns))}")
        return labelled(_images(whole, images[0], image_size, name), frame, roles, name)
    if image_size is not None:
        raise DataError(f"image_size: {name} has no images; leave it out")
    return content_of_frame(frame, roles, name)


def _place(name: str) -> tuple[str, str | None]:
    """A dataset's name or folder, and the split that is named."""
    place, _, split = name.removeprefix(HUB).partition(":")
    if not place:
        raise DataError(
            f"dataset: {name!r} names no dataset; expected hf:NAME or hf:NAME:SPLIT, such as hf:ylecun/mnist"
        )
    return place, split or None


def _load(place: str, name: str) -> Mapping[str, datasets.Dataset]:
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"{name}: it needs the package datasets; pip install 'fedl2g[hub]'") from error
    folder = Path(place).expanduser()
    try:
        with _without_bars():
            if any((folder / file).is_file() for file in ("dataset_dict.json", "state.json")):  # by save_to_disk
                found = datasets.load_from_disk(str(folder))
            else:
                found = datasets.load_dataset(str(folder) if folder.is_dir() else place)
    except Exception as error:  # the package raises many kinds of errors
        raise DataError(
            f"{name}: cannot be loaded ({reason_of(error)}); check the name and the connection, or download the "
            "dataset elsewhere and name its folder, hf:FOLDER"
        ) from error
    return {"train": found} if isinstance(found, datasets.Dataset) else dict(found)


@contextmanager
def _without_bars() -> Iterator[None]:
    """Without the packages' own progress bars, which know nothing of --quiet and of the progress shown already."""
    from datasets import utils as loading
    from huggingface_hub import utils as downloading

    silenced = [package for package in (loading, downloading) if not package.are_progress_bars_disabled()]
    for package in silenced:
        package.disable_progress_bars()
    try:
        yield
    finally:
        for package in silenced:
            package.enable_progress_bars()


def _parts(splits: Mapping[str, datasets.Dataset], wanted: str | None, name: str) -> Mapping[str, datasets.Dataset]:
    if wanted is not None:
        if wanted not in splits:
            raise DataError(f"{name}: it has no split {wanted!r}; {choices(wanted, list(splits))}")
        return {wanted: splits[wanted]}
    if len(splits) > 1 and (others := [split for split in splits if split.lower() not in SIDE_WORDS]):
        raise DataError(
            f"{name}: its split {others[0]!r} is neither train, test nor validation; name the one to use, such as "
            f"hf:{_place(name)[0]}:{next(iter(splits))}"
        )
    return splits


def _joined(parts: Mapping[str, datasets.Dataset], name: str) -> datasets.Dataset:
    import datasets

    try:
        return datasets.concatenate_datasets(list(parts.values()))
    except ValueError as error:
        raise DataError(
            f"{name}: its splits do not have the same columns ({reason_of(error)}); name one, such as "
            f"hf:{_place(name)[0]}:{next(iter(parts))}"
        ) from error


def _frame(whole: datasets.Dataset, parts: Mapping[str, datasets.Dataset], roles: Roles) -> DataFrame:
    """All columns that are numbers or text, with the names of classes, and the split where there are several."""
    import pandas

    plain = [column for column, feature in whole.features.items() if _type(feature) in ("Value", "ClassLabel")]
    frame = whole.select_columns(plain).to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    for column in plain:
        if _type(feature := whole.features[column]) == "ClassLabel":  # -1: not known
            codes: NDArray[np.int64] = frame[column].fillna(-1).to_numpy(dtype=np.int64)
            frame[column] = pandas.Categorical.from_codes(codes, pandas.Index([str(name) for name in feature.names]))
    if len(parts) > 1 and SPLIT not in (roles.label, roles.group, *roles.text):
        frame[SPLIT] = np.repeat(list(parts), [len(part) for part in parts.values()])
    return frame


def _label(features: Mapping[str, Any], name: str) -> str:
    """The column with the labels where none is named: the one called `label`, or the only one with classes."""
    if "label" in features:
        return "label"
    classes = [column for column, feature in features.items() if _type(feature) == "ClassLabel"]
    if len(classes) == 1:
        return classes[0]
    raise DataError(
        f"label: {name} has {len(classes) or 'no'} columns with classes, and none is named as its label; choose one of "
        f"{', '.join(features)} (--label COLUMN)"
    )


def _images(whole: datasets.Dataset, column: str, image_size: int | None, name: str) -> Content:
    import datasets

    stored = whole.select_columns([column]).cast_column(column, datasets.Image(decode=False))

    def read(number: int) -> bytes:
        image = stored[number][column]
        if image is None or (image["bytes"] is None and image["path"] is None):
            raise ValueError("there is no image")
        content: bytes = Path(image["path"]).read_bytes() if image["bytes"] is None else image["bytes"]
        return content

    files = [(f"{name}, row {number}", lambda number=number: read(number)) for number in range(len(stored))]
    mode, own_size = mode_and_size(files)
    size = image_size or own_size or FOLDER_IMAGE_SIZE
    return Content(
        image_schema(3 if mode == "RGB" else 1, size, size),
        decode_images(files, size, mode),
        np.empty(0, dtype=np.int64),
        (),
        dtype="uint16" if mode == "I;16" else "uint8",
    )


def _type(feature: object) -> str:
    return type(feature).__name__
