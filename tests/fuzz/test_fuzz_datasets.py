"""Thousands of damaged dataset files, cache entries and partition files: refused, built again, or sound."""

from __future__ import annotations

import ast
import io
import json
import os
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz_helpers import Fuzz, replaced, spoiled_text

from fedl2g.datasets import Partition, load_dataset, make_partition
from fedl2g.datasets.cache import open_or_build
from fedl2g.datasets.dataset import Content, Dataset
from fedl2g.deploy.samples import Form, Samples, read_samples
from fedl2g.schema import image_schema

COUNT, CLASSES = 12, 3
ARRAYS: dict[str, Any] = {
    "images": np.arange(COUNT * 4 * 4, dtype=np.uint8).reshape(COUNT, 4, 4),
    "labels": np.arange(COUNT) % CLASSES,
    "class_names": np.array(["a", "b", "c"]),
    "domains": np.arange(COUNT) % 2,
}


def _npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=array.dtype == object)
    return file.getvalue()


def _spoiled_bytes(draw: random.Random, data: bytes) -> bytes:
    how = draw.randrange(5)
    if how == 0:
        return data[: draw.randrange(len(data))]
    if how == 1:
        return data + draw.randbytes(draw.randrange(1, 40))
    if how == 2:
        return draw.randbytes(draw.randrange(120))
    changed = bytearray(data)
    for _ in range(draw.randrange(1, 6)):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _spoiled_npy(draw: random.Random, array: Any) -> bytes:
    """An array's file with another header over the same bytes, damaged bytes, or another array."""
    data = _npy(array)
    how = draw.random()
    if how < 0.3:
        return _spoiled_bytes(draw, data)
    if how < 0.7:
        size = int.from_bytes(data[8:10], "little")
        header = ast.literal_eval(data[10 : 10 + size].decode("latin-1"))
        key = draw.choice(["descr", "shape", "fortran_order", "extra"])
        choices: dict[str, list[Any]] = {
            "descr": ["|O", "<f8", "|u1", ">i8", "<U5", "<U99999999", "|V0", "<M8[D]", [("a", "<i8")], "nonsense", 5],
            "shape": [(2**40,), (2**62, 4), (-1,), (0,), (), (3, 4), (2**30, 2**30), "x", (1.5,)],
            "fortran_order": [True, 1, "x"],
            "extra": [None],
        }
        header[key] = draw.choice(choices[key])
        text = spoiled_text(draw, repr(header)) if draw.random() < 0.3 else repr(header)
        encoded = text.encode("utf-8")[:60000] + b"\n"
        return data[:8] + len(encoded).to_bytes(2, "little") + encoded + data[10 + size :]
    other = [
        array.astype(np.float64) if array.dtype.kind != "U" else array,
        array[: draw.randrange(len(array) + 1)],
        array[:, None],
        np.array([{"a": 1}], dtype=object),
        -array.astype(np.int64) if array.dtype.kind != "U" else array.astype("S"),
        np.zeros((len(array), 4, 4, draw.choice([0, 1, 5])), np.uint8),
        np.array(7),
        array.astype(np.int64) + 2**40 if array.dtype.kind != "U" else array[:1],
    ]
    return _npy(draw.choice(other))


def _zip(members: dict[str, bytes], draw: random.Random) -> bytes:
    file = io.BytesIO()
    method = draw.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def _sound(dataset: Dataset) -> bool:
    labels, domains = np.asarray(dataset.labels), dataset.groups
    return (
        dataset.inputs.dtype == np.uint8
        and dataset.inputs.ndim == 4
        and len(dataset.inputs) == len(labels) > 0
        and labels.dtype == np.int64
        and bool((labels >= 0).all() and (labels < dataset.classes).all())
        and all(type(name) is str for name in (*dataset.class_names, *dataset.group_names, dataset.name))
        and (domains is None or (domains.shape == labels.shape and domains.dtype == np.int64))
        and (domains is None or bool((domains >= 0).all() and (domains < len(dataset.group_names)).all()))
        and len(dataset.fingerprint) == 64
    )


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # thousands of times; nothing here is about a power cut


def test_npz_files(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    draw, fuzz = random.Random(11), Fuzz()
    members = {f"{name}.npy": _npy(array) for name, array in ARRAYS.items()}
    for number in range(1000):
        path = tmp_path / f"{number}.npz"  # a name of its own: what was read before is in the cache
        if draw.random() < 0.3:
            data = _spoiled_bytes(draw, _zip(members, draw))
        else:
            name = draw.choice(sorted(ARRAYS))
            changed = {**members, f"{name}.npy": _spoiled_npy(draw, ARRAYS[name])}
            if draw.random() < 0.1:
                del changed[f"{name}.npy"]
            data = _zip(changed, draw)
        path.write_bytes(data)
        fuzz(lambda path=path: load_dataset(str(path), data_dir=tmp_path / "cache"), _sound, data)  # type: ignore[misc]
    fuzz.finish(1000, refused=0.5)
    assert [str(one.message) for one in recwarn] == []


def _complete(samples: Samples) -> bool:
    names, batches = samples
    found = np.concatenate(list(batches))
    return found.dtype == np.uint8 and found.shape == (len(names), 1, 4, 4)


def test_arrays_to_predict(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    draw, fuzz = random.Random(14), Fuzz()
    form = Form(image_schema(1, 4, 4))
    for number in range(1000):
        data = _spoiled_npy(draw, ARRAYS["images"])
        path = tmp_path / f"{number}.npy"
        if number % 2:
            path, data = path.with_suffix(".npz"), _zip({draw.choice(["images", "images.npy"]): data}, draw)
            data = _spoiled_bytes(draw, data) if draw.random() < 0.5 else data
        path.write_bytes(data)
        fuzz(lambda path=path: read_samples(path, form), _complete, data)  # type: ignore[misc]
    fuzz.finish(1000, refused=0.5)
    assert [str(one.message) for one in recwarn] == []


def test_cache_entries(tmp_path: Path) -> None:
    """A damaged entry is noticed and built again, or it is sound. Pixels are not read when it is opened."""
    draw, fuzz = random.Random(12), Fuzz()
    images, names = [ARRAYS["images"][:, None]], ("a", "b", "c")
    content = Content(image_schema(1, 4, 4), images, ARRAYS["labels"], names, ARRAYS["domains"], ("x", "y"))
    built = 0

    def build() -> Content:
        nonlocal built
        built += 1
        return content

    whole = open_or_build("d", "key", tmp_path, build)
    entry = tmp_path / "key"
    files = {file.name: file.read_bytes() for file in entry.iterdir()}
    assert set(files) == {"meta.json", "inputs.npy", "labels.npy", "groups.npy"}
    for _ in range(500):
        for name, data in files.items():
            (entry / name).write_bytes(data)
        name = draw.choice(sorted(files))
        if name == "meta.json":
            meta = json.loads(files[name])
            text = json.dumps(replaced(draw, meta)) if draw.random() < 0.6 else spoiled_text(draw, files[name].decode())
            (entry / name).write_text(text, encoding="utf-8")
        elif draw.random() < 0.1:
            (entry / name).unlink()
        else:
            spoiled = _spoiled_npy(draw, np.load(io.BytesIO(files[name])))
            (entry / name).write_bytes(spoiled)
            meta = json.loads(files["meta.json"])  # sizes that fit: only the content is wrong
            meta["file_sizes"][name] = len(spoiled)
            (entry / "meta.json").write_text(json.dumps(meta))
        fuzz(lambda: open_or_build("d", "key", tmp_path, build), _sound, name)
    fuzz.finish(500, refused=0)
    assert built > 250
    assert open_or_build("d", "key", tmp_path, build).classes == whole.classes


def _sound_partition(found: Partition, total: int = COUNT, clients: int = 2) -> bool:
    lists = [a.tolist() for a in (*found.train, *found.test)]
    indices = [index for one in lists for index in one]
    return (
        len(found.train) == len(found.test) == clients
        and all(lists)
        and len(set(indices)) == len(indices)
        and all(type(i) is int and 0 <= i < total for i in indices)
    )


@pytest.mark.parametrize(
    "good",
    [
        {"train": [[0, 1, 2], [6, 7]], "test": [[3, 4], [8]]},
        [[0, 1, 2, 3, 4], [6, 7, 8, 9]],
        {"0": [0, 1, 2, 3, 4], "1": [6, 7, 8, 9]},
    ],
    ids=["two sides", "lists", "numbered"],
)
def test_partition_files(good: Any, tmp_path: Path) -> None:
    draw, fuzz = random.Random(13), Fuzz()
    path = tmp_path / "split.json"

    def read() -> Partition:
        labels = ARRAYS["labels"]
        return make_partition(f"file:{path}", labels, None, clients=2, classes=CLASSES, seed=0)

    path.write_text(json.dumps(good))
    assert _sound_partition(read())
    for _ in range(800):
        how = draw.random()
        if how < 0.5:
            text = json.dumps(replaced(draw, good))
        elif how < 0.9:
            text = spoiled_text(draw, json.dumps(good))
        else:
            text = draw.randbytes(draw.randrange(60)).decode("latin-1")
        path.write_text(text, encoding="utf-8")
        fuzz(read, _sound_partition, text)
    fuzz.finish(800, refused=0.5)
