"""Readers of the named datasets that are not images: signals of sensors, texts, and tables of scikit-learn."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedl2g.datasets.archives import archive_errors
from fedl2g.datasets.arrays import text_content
from fedl2g.datasets.dataset import Content
from fedl2g.errors import DataError
from fedl2g.schema import Column, Schema

HAR_SIGNALS = tuple(f"{what}_{axis}" for what in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
HAR = Schema("signal", (9, 128))
AG_NEWS_CLASSES = ("World", "Sports", "Business", "Sci/Tech")
PAMAP2 = Schema("signal", (27, 128))
PAMAP2_SUBJECTS = tuple(range(101, 110))
PAMAP2_ACTIVITIES = {
    1: "lying", 2: "sitting", 3: "standing", 4: "walking", 5: "running", 6: "cycling", 7: "Nordic walking",
    12: "ascending stairs", 13: "descending stairs", 16: "vacuum cleaning", 17: "ironing", 24: "rope jumping",
}  # fmt: skip
# Of each of the three units: acceleration (16 g), gyroscope and magnetometer. Orientation is marked invalid.
_PAMAP2_COLUMNS = [3 + 17 * unit + column for unit in range(3) for column in (1, 2, 3, 7, 8, 9, 10, 11, 12)]
_PAMAP2_WIDTH = 54
_WINDOW, _STEP, _KEEP_EVERY = 512, 256, 4  # samples at 100 Hz: windows of 5.12 s, half overlapping, at 25 Hz


def read_har(files: Mapping[str, Path], size: int) -> Content:
    """UCI HAR: the nine raw inertial signals in windows of 128, train before test, with the subject of each window."""
    (path,) = files.values()
    inputs, labels, subjects = [], [], []
    with archive_errors(path), _inner_archive(path, "UCI HAR Dataset.zip") as archive:
        names = dict(
            line.split() for line in _text(archive, "UCI HAR Dataset/activity_labels.txt").splitlines() if line
        )
        for side in ("train", "test"):
            folder = f"UCI HAR Dataset/{side}"
            signals = [_numbers(archive, f"{folder}/Inertial Signals/{name}_{side}.txt") for name in HAR_SIGNALS]
            inputs.append(np.stack(signals, axis=1).astype(np.float32))
            labels.append(_numbers(archive, f"{folder}/y_{side}.txt").astype(np.int64).ravel())
            subjects.append(_numbers(archive, f"{folder}/subject_{side}.txt").astype(np.int64).ravel())
    numbers, who = np.concatenate(labels), np.concatenate(subjects)
    together = np.concatenate(inputs)
    if together.shape[1:] != HAR.shape or not len(numbers) == len(who) == len(together):
        raise DataError(f"{path}: its files do not fit together; delete it and load the dataset again")
    present, groups = np.unique(who, return_inverse=True)
    return Content(
        HAR,
        [together],
        _checked(numbers - 1, len(names), path),
        tuple(names[str(number)].replace("_", " ").lower() for number in range(1, len(names) + 1)),
        groups.astype(np.int64),
        tuple(map(str, present.tolist())),
        "subject",
        dtype="float32",
    )


def read_pamap2(files: Mapping[str, Path], size: int) -> Content:
    """PAMAP2's protocol: windows of 5.12 s inside one activity, every fourth sample, gaps filled in linearly."""
    (path,) = files.values()
    inputs, labels = [], []
    groups: list[int] = []
    names: list[str] = []
    with archive_errors(path), _inner_archive(path, "PAMAP2_Dataset.zip") as archive:
        for subject in PAMAP2_SUBJECTS:
            rows = _numbers(archive, f"PAMAP2_Dataset/Protocol/subject{subject}.dat")
            if rows.shape[1] != _PAMAP2_WIDTH:
                raise ValueError(f"subject{subject}.dat has {rows.shape[1]} columns instead of {_PAMAP2_WIDTH}")
            activities, signals = rows[:, 1].astype(np.int64), _filled(rows[:, _PAMAP2_COLUMNS])
            found = 0
            for start, end in _segments(activities):
                for first in range(start, end - _WINDOW + 1, _STEP):
                    inputs.append(signals[first : first + _WINDOW : _KEEP_EVERY].T.astype(np.float32))
                    labels.append(list(PAMAP2_ACTIVITIES).index(int(activities[first])))
                    found += 1
            if found:
                groups += [len(names)] * found
                names.append(str(subject))
        if not inputs:
            raise ValueError("no window of an activity")
    return Content(
        PAMAP2,
        [np.stack(inputs)],
        np.array(labels, dtype=np.int64),
        tuple(PAMAP2_ACTIVITIES.values()),
        np.array(groups, dtype=np.int64),
        tuple(names),
        "subject",
        dtype="float32",
    )


def read_ag_news(files: Mapping[str, Path], size: int) -> Content:
    """AG News: lines of class, title and description without a header, train before test."""
    texts, labels = [], []
    for path in (files["ag_news_train.csv"], files["ag_news_test.csv"]):
        with archive_errors(path), path.open(encoding="utf-8", newline="") as lines:
            for number, title, description in csv.reader(lines):
                labels.append(int(number) - 1)
                texts.append(f"{title} {description}")
    content = text_content(texts)
    checked = _checked(np.array(labels), len(AG_NEWS_CLASSES), files["ag_news_train.csv"])
    return Content(content.schema, content.inputs, checked, AG_NEWS_CLASSES, dtype=content.dtype)


def read_breast_cancer(files: Mapping[str, Path], size: int) -> Content:
    """scikit-learn's bundled table of 30 measurements of tumours."""
    from sklearn.datasets import load_breast_cancer

    return _bunch(load_breast_cancer())


def read_wine(files: Mapping[str, Path], size: int) -> Content:
    """scikit-learn's bundled table of 13 measurements of wines from three growers."""
    from sklearn.datasets import load_wine

    return _bunch(load_wine())


def _bunch(bunch: Any) -> Content:
    columns = tuple(Column(str(name)) for name in bunch.feature_names)
    return Content(
        Schema("table", (len(columns),), columns),
        [bunch.data.astype(np.float32)],
        bunch.target.astype(np.int64),
        tuple(map(str, bunch.target_names)),
        dtype="float32",
    )


@contextmanager
def _inner_archive(path: Path, inner: str) -> Iterator[zipfile.ZipFile]:
    """The published archive, or the one of this name inside it: the archive's site wraps some of its files twice."""
    with zipfile.ZipFile(path) as outer:
        if inner not in outer.namelist():
            yield outer
            return
        with outer.open(inner) as file, zipfile.ZipFile(file) as archive:
            yield archive


def _text(archive: zipfile.ZipFile, member: str) -> str:
    return archive.read(member).decode("utf-8")


def _numbers(archive: zipfile.ZipFile, member: str) -> NDArray[np.float64]:
    """A member with numbers separated by spaces, a row for each line."""
    import pandas

    frame = pandas.read_csv(io.BytesIO(archive.read(member)), sep=r"\s+", header=None, dtype=np.float64)
    return frame.to_numpy()


def _filled(signals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Missing samples by linear interpolation in time."""
    import pandas

    filled = pandas.DataFrame(signals).interpolate(limit_direction="both").to_numpy()
    if np.isnan(filled).any():
        raise ValueError("a signal without any sample")
    return filled


def _segments(activities: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """The start and end of each segment of one known activity."""
    ends = [*(np.flatnonzero(np.diff(activities)) + 1).tolist(), len(activities)]
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        if int(activities[start]) in PAMAP2_ACTIVITIES:
            yield start, end


def _checked(labels: NDArray[Any], classes: int, path: Path) -> NDArray[np.int64]:
    if not len(labels) or labels.min() < 0 or labels.max() >= classes:
        raise DataError(f"{path}: its labels do not fit its {classes} classes; delete it and load the dataset again")
    return labels.astype(np.int64)
