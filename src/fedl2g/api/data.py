"""Data from a script or notebook: arrays, a torch Dataset, a pandas DataFrame, or the name of a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedl2g.datasets.dataset import Dataset
from fedl2g.datasets.loading import load_dataset
from fedl2g.datasets.memory import name_of, store_arrays
from fedl2g.errors import DataError

_FORMS = "expected arrays of images and labels, a torch Dataset of (image, label) pairs, a DataFrame, or a name"


@dataclass(frozen=True)
class Data:
    """A dataset that is ready to be used, and the settings by which an experiment names it."""

    settings: dict[str, Any]
    dataset: Dataset

    def __repr__(self) -> str:
        return (
            f"<fedl2g data {self.dataset.name!r}: {len(self.dataset):,} {self.dataset.schema}, "
            f"{self.dataset.classes} classes>"
        )

    def __len__(self) -> int:
        return len(self.dataset)


def data(
    images: Any,
    labels: ArrayLike | str | None = None,
    *,
    domains: ArrayLike | str | None = None,
    class_names: Sequence[str] | None = None,
    name: str = "data",
    image_size: int | None = None,
    samples: int | None = None,
) -> Data:
    """Make data of your own, or a named dataset, ready for `fedl2g.run` and `fedl2g.compare`.

    `images` is an array (N x H x W, or N x H x W x C with 1 to 4 channels; whole numbers 0..255, or fractions 0..1,
    which are rounded to 8 bits), a torch Dataset of (image, label) pairs, or a pandas DataFrame with the columns
    `image` (arrays or pictures) and `label`; `labels` and `domains` then name columns. Or it is the name of a
    dataset, the path of an .npz file or of a folder of images.

    Arrays are stored once, by content, in the cache: worker processes, `resume` and Flower open them from there.
    """
    if isinstance(images, str | Path):
        dataset = load_dataset(str(images), samples=samples, image_size=image_size)
        settings = {"dataset": str(images), "samples": samples, "image_size": image_size}
        return Data({name: value for name, value in settings.items() if value is not None}, dataset)
    if samples is not None:
        raise DataError("samples: it chooses from a named dataset; give only the images you want")
    arrays = _arrays(images, labels, domains)
    if class_names is not None:
        arrays["class_names"] = np.asarray(list(class_names), dtype=np.str_)
    dataset = store_arrays(arrays, name, image_size=image_size)
    return Data({"dataset": name_of(dataset)}, dataset)


def _arrays(images: Any, labels: Any, domains: Any) -> dict[str, NDArray[Any]]:
    if hasattr(images, "columns") and hasattr(images, "iloc"):  # a DataFrame, without importing pandas
        return _columns(images, "label" if labels is None else labels, domains)
    if labels is None:
        if not (hasattr(images, "__getitem__") and hasattr(images, "__len__")) or isinstance(images, np.ndarray):
            raise DataError(f"data: labels are missing; {_FORMS}")
        return _pairs(images)
    arrays = {"images": _pixels(_array(images, "images")), "labels": _array(labels, "labels")}
    return arrays if domains is None else {**arrays, "domains": _array(domains, "domains")}


def _columns(frame: Any, label: Any, domain: Any) -> dict[str, NDArray[Any]]:
    wanted = {"images": "image", "labels": label, **({} if domain is None else {"domains": domain})}
    for column in wanted.values():
        if not isinstance(column, str) or column not in frame.columns:
            raise DataError(
                f"data: the DataFrame has no column {column!r}; it has {', '.join(map(str, frame.columns))}; expected "
                "`image` and `label`, or the name of the column with the labels"
            )
    found = {key: _stack(list(frame[column]), key) for key, column in wanted.items()}
    return {**found, "images": _pixels(found["images"])}


def _pairs(dataset: Any) -> dict[str, NDArray[Any]]:
    images, labels = [], []
    for index in range(len(dataset)):
        item = dataset[index]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(f"data: item {index} of the dataset is not an (image, label) pair; {_FORMS}")
        image = np.asarray(item[0])
        # torch transforms give C x H x W
        images.append(image.transpose(1, 2, 0) if hasattr(item[0], "detach") and image.ndim == 3 else image)
        labels.append(np.asarray(item[1]))
    return {"images": _pixels(_stack(images, "images")), "labels": _stack(labels, "labels")}


def _array(values: Any, what: str) -> NDArray[Any]:
    if hasattr(values, "detach"):  # a tensor
        values = values.detach().cpu()
    try:
        array: NDArray[Any] = np.asarray(values)
    except ValueError as error:
        raise DataError(f"data: the {what} do not form an array: their shapes differ; {_FORMS}") from error
    return array.astype(np.str_) if array.dtype == object and what != "images" else array


def _stack(values: Sequence[Any], what: str) -> NDArray[Any]:
    try:
        return _array(np.stack([np.asarray(value) for value in values]), what)
    except ValueError as error:
        raise DataError(f"data: the {what} are of different shapes; expected one shape for all of them") from error


def _pixels(images: NDArray[Any]) -> NDArray[Any]:
    """Fractions 0..1 as bytes 0..255; other arrays are checked where all data is."""
    if images.dtype.kind == "f" and images.size:
        if not (images.min() >= 0 and images.max() <= 1):
            raise DataError(
                f"data: the images have values from {images.min():g} to {images.max():g}; expected fractions 0..1, or "
                "whole numbers 0..255 of type uint8"
            )
        pixels: NDArray[np.uint8] = np.rint(images * 255).astype(np.uint8)
        return pixels
    if images.dtype.kind in "iu" and images.size and images.min() >= 0 and images.max() <= 255:
        return images.astype(np.uint8, copy=False)  # whole numbers of lists are 64 bits wide
    return images
