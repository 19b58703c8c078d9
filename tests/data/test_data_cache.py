"""The cache: opened in no time, rebuilt when damaged, safe when several processes build at once."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedl2g import files
from fedl2g.datasets import Dataset, load_dataset
from fedl2g.datasets.cache import cache_folder, open_or_build
from fedl2g.datasets.dataset import Content
from fedl2g.errors import DataError
from fedl2g.schema import image_schema


def content(count: int = 6, seed: int = 0) -> Content:
    images = np.random.RandomState(seed).randint(0, 256, (count, 1, 4, 5)).astype(np.uint8)
    return Content(
        image_schema(1, 4, 5),
        [images[:2], images[2:]],
        np.arange(count) % 2,
        ("a", "b"),
        np.arange(count) % 3,
        ("x", "y", "z"),
    )


def never() -> Content:
    raise AssertionError("built although it is cached")


def test_a_cached_dataset_is_opened_not_built(tmp_path: Path) -> None:
    built = open_or_build("mine", "key", tmp_path, content)
    opened = open_or_build("mine", "key", tmp_path, never)
    assert isinstance(opened.inputs, np.memmap)
    assert not opened.inputs.flags.writeable
    assert not opened.labels.flags.writeable
    assert (opened.name, opened.classes, opened.shape, len(opened)) == ("mine", 2, (1, 4, 5), 6)
    assert opened.class_names == ("a", "b")
    assert opened.group_names == ("x", "y", "z")
    assert opened.groups is not None
    assert opened.groups.tolist() == [0, 1, 2, 0, 1, 2]
    assert opened.inputs.tolist() == np.concatenate(list(content().inputs)).tolist()
    assert opened.fingerprint == built.fingerprint


def test_the_fingerprint_tells_data_apart(tmp_path: Path) -> None:
    prints = {
        open_or_build("mine", "one", tmp_path, content).fingerprint,
        open_or_build("mine", "two", tmp_path, lambda: content(seed=1)).fingerprint,
        open_or_build("mine", "three", tmp_path, lambda: content(count=5)).fingerprint,
    }
    assert len(prints) == 3
    assert open_or_build("other", "four", tmp_path, content).fingerprint in prints


def damage_missing(entry: Path) -> None:
    (entry / "labels.npy").unlink()


def damage_short(entry: Path) -> None:
    with open(entry / "inputs.npy", "ab") as file:
        file.truncate(140)


def damage_json(entry: Path) -> None:
    (entry / "meta.json").write_text("{")


def damage_list(entry: Path) -> None:
    (entry / "meta.json").write_text("[]")


def damage_sizes(entry: Path) -> None:
    meta = json.loads((entry / "meta.json").read_text()) | {"file_sizes": 3}
    (entry / "meta.json").write_text(json.dumps(meta))


def damage_header(entry: Path) -> None:
    data = bytearray((entry / "inputs.npy").read_bytes())
    data[:10] = b"0123456789"
    (entry / "inputs.npy").write_bytes(data)


def damage_all(entry: Path) -> None:
    shutil.rmtree(entry)
    entry.mkdir()


@pytest.mark.parametrize(
    "damage", [damage_missing, damage_short, damage_json, damage_list, damage_sizes, damage_header, damage_all]
)
def test_a_damaged_entry_is_built_again(tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    before = open_or_build("mine", "key", tmp_path, content).fingerprint
    damage(tmp_path / "key")
    assert open_or_build("mine", "key", tmp_path, content).fingerprint == before
    assert open_or_build("mine", "key", tmp_path, never).fingerprint == before


def test_an_interrupted_build_leaves_nothing_behind(tmp_path: Path) -> None:
    def broken() -> Content:
        whole = content()

        def images() -> Iterator[np.ndarray]:
            yield next(iter(whole.inputs))
            raise KeyboardInterrupt

        return Content(image_schema(1, 4, 5), images(), whole.labels, whole.class_names)

    with pytest.raises(KeyboardInterrupt):
        open_or_build("mine", "key", tmp_path, broken)
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".lock"] == []
    (tmp_path / ".key.partial-7").mkdir()  # what kill -9 leaves
    (tmp_path / ".key.partial-7" / "images.npy").write_bytes(b"half")
    assert len(open_or_build("mine", "key", tmp_path, content)) == 6
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".lock") == ["key"]


def test_a_source_with_too_few_images_is_refused(tmp_path: Path) -> None:
    def short() -> Content:
        whole = content()
        return Content(image_schema(1, 4, 5), list(whole.inputs)[:1], whole.labels, whole.class_names)

    with pytest.raises(DataError, match="6 labels but 2 images"):
        open_or_build("mine", "key", tmp_path, short)
    assert not (tmp_path / "key").exists()


def _build_slowly(folder: Path, ready, results) -> None:  # type: ignore[no-untyped-def]
    def build() -> Content:
        with open(folder / "builds", "a") as log:
            log.write("x")
        return content(count=2000)

    ready.wait()
    dataset = open_or_build("mine", "key", folder, build)
    results.put((dataset.fingerprint, int(dataset.inputs.sum())))


def test_processes_that_build_at_once_share_one_whole_entry(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready, results = context.Barrier(4), context.Queue()
    workers = [context.Process(target=_build_slowly, args=(tmp_path, ready, results)) for _ in range(4)]
    for worker in workers:
        worker.start()
    found = {results.get(timeout=60) for _ in workers}
    for worker in workers:
        worker.join()
    assert len(found) == 1
    assert (tmp_path / "builds").read_text() == "x"


def test_a_dataset_travels_to_a_worker_as_the_address_of_its_folder(tmp_path: Path) -> None:
    dataset = open_or_build("mine", "key", tmp_path, lambda: content(count=5000))
    sent = pickle.dumps(dataset)
    assert len(sent) < 1000
    received: Dataset = pickle.loads(sent)
    assert isinstance(received.inputs, np.memmap)
    assert received.fingerprint == dataset.fingerprint


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DataError, match=r"file.*cannot be stored.*FEDL2G_DATA"):
        open_or_build("mine", "key", tmp_path / "file", content)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(DataError, match="make that folder writable"):
        open_or_build("mine", "key", tmp_path, content)


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "flush", full)
    with pytest.raises(DataError, match="disk is full"):
        open_or_build("mine", "key", tmp_path, content)


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDL2G_DATA", str(tmp_path / "named"))
    assert cache_folder(None) == tmp_path / "named"
    assert cache_folder(tmp_path / "given") == tmp_path / "given"
    monkeypatch.delenv("FEDL2G_DATA")
    assert cache_folder(None).parts[-2:] == ("fedl2g", "datasets")


def test_samples_are_class_stratified_fixed_and_cached(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    few = load_dataset("digits", samples=101, data_dir=tmp_path, progress=lambda *step: seen.append(step))
    whole = load_dataset("digits", data_dir=tmp_path)
    exact = np.bincount(whole.labels) * 101 / len(whole)
    counts = np.bincount(few.labels, minlength=10)
    assert counts.sum() == 101
    assert (np.abs(counts - exact) < 1).all()
    again = load_dataset("digits", samples=101, data_dir=tmp_path)
    assert again.fingerprint == few.fingerprint != whole.fingerprint
    assert isinstance(again.inputs, np.memmap)
    assert few.classes == 10
    assert ("Reading digits", 1797, 1797) in seen
    # a subset is a part of the whole, in its order
    positions = [np.flatnonzero((whole.inputs == image).all(axis=(1, 2, 3)))[0] for image in few.inputs[:20]]
    assert positions == sorted(positions)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"samples": 1798}, "more than the 1797 samples of digits"),
        ({"samples": 0}, "samples: 0 is not allowed"),
        ({"image_size": 0}, "image_size: 0 is not allowed"),
    ],
)
def test_impossible_sizes_are_refused(tmp_path: Path, wrong: dict[str, int], words: str) -> None:
    with pytest.raises(DataError, match=words):
        load_dataset("digits", data_dir=tmp_path, **wrong)  # type: ignore[arg-type]
