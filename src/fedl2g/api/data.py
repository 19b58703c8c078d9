"""Data from a script or notebook: arrays, texts, a torch Dataset, a pandas DataFrame, or the name of a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedl2g.datasets.dataset import Dataset
from fedl2g.datasets.loading import load_dataset
from fedl2g.datasets.memory import name_of, store_arrays, store_frame
from fedl2g.datasets.tables import Roles
from fedl2g.errors import DataError, choices, kind_of
from fedl2g.schema import KINDS, Kind

if TYPE_CHECKING:
    from pandas import DataFrame

_FORMS = "expected arrays of inputs and labels, a torch Dataset of (input, label) pairs, a DataFrame, or a name"


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
    inputs: Any,
    labels: ArrayLike | str | None = None,
    *,
    kind: Kind | None = None,
    groups: ArrayLike | str | None = None,
    split: ArrayLike | None = None,
    text: str | Sequence[str] | None = None,
    ignore: str | Sequence[str] = (),
    class_names: Sequence[str] | None = None,
    name: str = "data",
    image_size: int | None = None,
    samples: int | None = None,
) -> Data:
    """Make data of your own, or a named dataset, ready for `fedl2g.run` and `fedl2g.compare`.

    `inputs` is one of these:

    - an array of images (N x H x W, or N x H x W x C with 1 to 4 channels; whole numbers 0..255, or fractions 0..1,
      which are rounded to 8 bits), of signals (N x channels x time, with `kind="signal"`), or a table of numbers
      (N x columns), or a list of N texts;
    - a torch Dataset of (input, label) pairs;
    - a pandas DataFrame: with a column `image` (arrays or pictures) it holds images, with `text` texts, else its
      columns are the inputs, numbers or categories. `labels` (by default `label`) and `groups` then name columns, and
      `text` and `ignore` one column or several;
    - the name of a dataset, or the path of a file or folder as `--dataset` takes it, with `labels`, `text` and
      `ignore` for a table.

    `groups` says where a sample comes from, such as a hospital, for the partition `by:group` (of a DataFrame:
    `by:COLUMN`). `split` says `train`, `test` or `validation` for each sample, where the data come with a split; a
    table says it in a column of this name. `class_names` names whole numbers. Arrays and tables are stored once, by
    content, in the cache: worker processes, `resume` and Flower open them from there.
    """
    if kind is not None and kind not in KINDS:
        raise DataError(f"kind: {kind!r} is not known; {choices(str(kind), KINDS)}")
    if isinstance(inputs, str | Path):
        for what, given in (("kind", kind), ("groups", groups), ("split", split), ("class_names", class_names)):
            if given is not None:
                raise DataError(
                    f"{what}: does not apply to the name of a dataset or file, which says it itself; leave it out (the "
                    "partition by:COLUMN names the groups of a table)"
                )
        return _named(str(inputs), labels, _names(text), _names(ignore), image_size, samples)
    if samples is not None:
        raise DataError(
            "samples: applies to named datasets only; expected no value here; pass only the samples you want"
        )
    if _is_frame(inputs) and (text is not None or "image" not in inputs.columns):
        for what, given in (("class_names", class_names), ("image_size", image_size), ("split", split)):
            if given is not None:
                raise DataError(f"{what}: does not apply to a table or texts in a DataFrame; leave it out")
        roles = Roles(_column(labels, "labels") or "label", _names(text), _names(ignore), _column(groups, "groups"))
        if roles.group is not None and roles.group not in inputs.columns:
            columns = list(map(str, inputs.columns))
            raise DataError(f"groups: the DataFrame has no column {roles.group!r}; {choices(roles.group, columns)}")
        return _stored(store_frame(inputs, roles, name))
    if text is not None or ignore:
        raise DataError("text, ignore: name columns; expected a DataFrame, or the path of a CSV or parquet file")
    arrays = _arrays(inputs, labels, groups, kind)
    if split is not None:
        arrays["split"] = _array(split, "split")
    if class_names is not None:
        arrays["class_names"] = np.asarray(list(class_names), dtype=np.str_)
    return _stored(store_arrays(arrays, name, image_size=image_size))


def _stored(dataset: Dataset) -> Data:
    if dataset.classes < 2:
        raise DataError(
            "labels: all samples are of one class, which every network predicts without learning; expected at least "
            "two classes; give the column or array with the labels, or with class_names the names of all classes"
        )
    return Data({"dataset": name_of(dataset)}, dataset)


def _named(
    name: str, label: Any, text: tuple[str, ...], ignore: tuple[str, ...], image_size: int | None, samples: int | None
) -> Data:
    roles = Roles(_column(label, "labels"), text, ignore)
    dataset = load_dataset(name, samples=samples, image_size=image_size, roles=roles)
    settings = {
        "dataset": name,
        "samples": samples,
        "image_size": image_size,
        "label": roles.label,
        "text": ",".join(text) or None,
        "ignore": ",".join(ignore) or None,
    }
    return Data({name: value for name, value in settings.items() if value is not None}, dataset)


def _is_frame(inputs: Any) -> TypeGuard[DataFrame]:
    """Whether this is a DataFrame; without importing pandas."""
    return hasattr(inputs, "columns") and hasattr(inputs, "iloc")


def _names(given: str | Sequence[str] | None) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given or ())


def _column(given: Any, what: str) -> str | None:
    if given is not None and not isinstance(given, str):
        raise DataError(f"{what}: {kind_of(given)} is not the name of a column; expected a column of the table")
    return given


def _arrays(inputs: Any, labels: Any, groups: Any, kind: Kind | None) -> dict[str, NDArray[Any]]:
    if _is_frame(inputs):
        return _columns(inputs, "label" if labels is None else labels, groups)
    if labels is None:
        if not (hasattr(inputs, "__getitem__") and hasattr(inputs, "__len__")) or isinstance(inputs, np.ndarray):
            raise DataError(f"data: labels are missing; {_FORMS}")
        found, numbers = _pairs(inputs)
    else:
        found, numbers = _array(inputs, "inputs"), _array(labels, "labels")
        if not found.ndim:
            raise DataError(f"data: {kind_of(inputs)} holds no samples; {_FORMS}")
    if numbers.dtype.kind in "iu":
        numbers = numbers.astype(np.int64)  # the same content, however wide the numbers are
    arrays = {**_samples(found, kind), "labels": numbers}
    return arrays if groups is None else {**arrays, "groups": _array(groups, "groups")}


def _samples(inputs: NDArray[Any], kind: Kind | None) -> dict[str, NDArray[Any]]:
    """The inputs under the name that files give them; two dimensions are a table, a list of texts is text."""
    if inputs.dtype == object and inputs.ndim == 1 and all(isinstance(text, str) for text in inputs):
        inputs = inputs.astype(np.str_)
    if kind is None:
        kind = "text" if inputs.dtype.kind == "U" else "table" if inputs.ndim == 2 else "image"
    if kind == "image":
        return {"images": _pixels(inputs)}
    return {"inputs": inputs, "kind": np.array(kind)}


def _columns(frame: Any, label: Any, group: Any) -> dict[str, NDArray[Any]]:
    wanted = {"images": "image", "labels": label, **({} if group is None else {"groups": group})}
    for column in wanted.values():
        if not isinstance(column, str) or column not in frame.columns:
            raise DataError(
                f"data: the DataFrame has no column {column!r}; it has {', '.join(map(str, frame.columns))}; expected "
                "`image` and `label`, or the name of the column with the labels"
            )
    found = {key: _stack(list(frame[column]), key) for key, column in wanted.items()}
    return {**found, "images": _pixels(found["images"])}


def _pairs(dataset: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    inputs, labels = [], []
    for index in range(len(dataset)):
        item = dataset[index]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(f"data: item {index} of the dataset is not an (input, label) pair; {_FORMS}")
        one = np.asarray(item[0])
        # torch transforms give images as C x H x W
        inputs.append(one.transpose(1, 2, 0) if hasattr(item[0], "detach") and one.ndim == 3 else one)
        labels.append(np.asarray(item[1]))
    return _stack(inputs, "inputs"), _stack(labels, "labels")


def _array(values: Any, what: str) -> NDArray[Any]:
    if hasattr(values, "detach"):  # a tensor
        values = values.detach().cpu()
    try:
        array: NDArray[Any] = np.asarray(values)
    except ValueError as error:
        raise DataError(f"data: the {what} do not form an array: their shapes differ; {_FORMS}") from error
    return array.astype(np.str_) if array.dtype == object and what != "inputs" else array


def _stack(values: Sequence[Any], what: str) -> NDArray[Any]:
    try:
        return _array(np.stack([np.asarray(value) for value in values]), what)
    except ValueError as error:
        raise DataError(f"data: the {what} are of different shapes; expected one shape for all of them") from error


def _pixels(images: NDArray[Any]) -> NDArray[Any]:
    """Fractions 0..1 as bytes 0..255; everything else is checked with all other data when it is stored."""
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
