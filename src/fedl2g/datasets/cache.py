"""The dataset cache: every dataset is decoded once, then opened as memory-mapped files.

An entry is a folder `KEY/` with inputs.npy, labels.npy, optionally groups.npy and split.npy, and meta.json. It is
created atomically and under a lock, so that neither a crash nor a second process can leave a broken entry. An entry
damaged later is detected when it is opened, and rebuilt.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
from filelock import FileLock

from fedl2g.datasets.dataset import (
    GROUPS_FILE,
    INPUTS_FILE,
    LABELS_FILE,
    META_FILE,
    SPLIT_FILE,
    Content,
    Dataset,
)
from fedl2g.errors import DataError
from fedl2g.files import remove_leftovers, replacing
from fedl2g.schema import PLURALS

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Progress callback: the activity, the amount done, and the total (None: unknown)."""

FORMAT = 1
"""Part of every key: increase it when the cache format changes."""
DATA_VARIABLE = "FEDL2G_DATA"


def cache_folder(data_dir: Path | None) -> Path:
    """The folder for datasets: the argument, else $FEDL2G_DATA, else the user's cache folder."""
    if data_dir is not None:
        return Path(data_dir).expanduser()
    if named := os.environ.get(DATA_VARIABLE):
        return Path(named).expanduser()
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("fedl2g")) / "datasets"


def cache_key(label: str, identity: object) -> str:
    """A folder name made of a readable label and a hash of the identity (any JSON value)."""
    digest = hashlib.sha256(json.dumps([FORMAT, identity], sort_keys=True).encode()).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', label).strip('-.')[:60]}-{digest[:16]}"


def open_or_build(
    name: str, key: str, folder: Path, build: Callable[[], Content], progress: Progress | None = None
) -> Dataset:
    """Open the entry `key`; build it first if it is missing or damaged."""
    if (ready := open_if_intact(folder / key)) is not None:
        return ready
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f"{key}.lock"):
            if (ready := open_if_intact(folder / key)) is not None:  # another process built it while this one waited
                return ready
            content = build()
            remove_leftovers(folder, key)
            with replacing(folder / key) as building:
                building.mkdir()
                _write(name, content, building, progress)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DataError(
                f"{folder}: the disk is full, there is no space for the dataset {name}; free some space or set "
                f"{DATA_VARIABLE} to a folder on a larger disk"
            ) from error
        raise DataError(
            f"{folder}: the dataset {name} cannot be stored ({error}); make that folder writable or set "
            f"{DATA_VARIABLE} to one that is"
        ) from error
    return Dataset.open(folder / key)


def open_if_intact(entry: Path) -> Dataset | None:
    """Open a cache folder; None if it is missing or damaged."""
    try:
        return Dataset.open(entry)
    except Exception:  # numpy and json raise many kinds of errors on damaged files
        return None


def _write(name: str, content: Content, building: Path, progress: Progress | None) -> None:
    """Write all files of an entry."""
    hashed = hashlib.sha256(repr(_form(content)).encode())
    _write_inputs(building / INPUTS_FILE, content, hashed.update, name, progress)
    small = {LABELS_FILE: content.labels, GROUPS_FILE: content.groups, SPLIT_FILE: content.split}
    files = [INPUTS_FILE]
    for file, values in small.items():
        if values is None:
            continue
        if file == SPLIT_FILE:  # not to be mistaken for groups
            hashed.update(b"split")
        little_endian = np.ascontiguousarray(values, dtype="<i8")
        hashed.update(little_endian.tobytes())
        with open(building / file, "wb") as out:
            np.save(out, little_endian, allow_pickle=False)
        files.append(file)
    meta = {
        "name": name,
        "class_names": content.class_names,
        "group_names": content.group_names,
        "group_column": content.group_column,
        "schema": content.schema.to_json(),
        "dtype": content.dtype,
        "scaling": (content.scaling.mean, content.scaling.std) if content.scaling else None,
        "fingerprint": hashed.hexdigest(),
        "file_sizes": {file: (building / file).stat().st_size for file in files},
    }
    (building / META_FILE).write_text(json.dumps(meta, indent=1), encoding="utf-8")


def _form(content: Content) -> tuple[object, ...]:
    """What determines the data besides the arrays themselves."""
    schema = content.schema
    form = (schema.shape, len(content.labels))
    if schema.kind == "image" and content.dtype == "uint8" and content.scaling is None:
        return form  # images keep the fingerprints that they had before there were other kinds
    return (*form, schema.kind, content.dtype, schema.columns, schema.vocabulary, content.scaling)


def _write_inputs(
    path: Path, content: Content, update: Callable[[bytes], None], name: str, progress: Progress | None
) -> None:
    # Plain writes, not a writable memory map: on a full disk, a write raises, but a map kills the process by a signal.
    done, total = 0, len(content.labels)
    dtype = np.dtype(content.dtype).newbyteorder("<")
    with open(path, "wb") as out:
        shape = (total, *content.schema.shape)
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(out, header)
        for batch in content.inputs:
            raw = np.ascontiguousarray(batch, dtype=dtype).tobytes()
            update(raw)
            out.write(raw)
            done += len(batch)
            if progress is not None:
                progress(f"Reading {name}", done, total)
    if done != total:
        what = PLURALS[content.schema.kind]
        raise DataError(f"dataset: {name} has {total} labels but {done} {what}; expected as many {what} as labels")
