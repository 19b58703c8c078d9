"""Writing files so that a reader, or a crash, sees the old content or the new, never half of it."""

from __future__ import annotations

import glob
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedl2g.errors import RunError


@contextmanager
def replacing(path: Path, *, durable: bool = True, on_disk: Collection[str] = ()) -> Iterator[Path]:
    """A name beside `path` to write a file or a folder to; it takes the place of `path` when the block ends.

    If the block fails, what was written is removed and `path` is as it was. `durable` flushes everything to the disk
    first, so that not even a power cut loses it, but for the names in `on_disk` (which the block may add to): of a
    folder's files those that are known to be there already. An OSError is the caller's to explain.
    """
    with _written_aside(path, durable, on_disk, _take_the_place_of) as partial:
        yield partial


@contextmanager
def appearing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """As `replacing`, for a folder that must be new: an OSError if there is one that is not empty."""
    with _written_aside(path, durable, (), Path.rename) as partial:
        yield partial


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """Replace a text file in one step; a RunError says why it cannot be written."""
    try:
        with replacing(path, durable=durable) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot write {path}: {reason_of(error)}; what was there before is intact") from error


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove what killed processes left while they wrote files of this folder, or the one of this name.

    Only for who knows that nobody else is writing there now.
    """
    for leftover in folder.glob(f".{'*' if name is None else glob.escape(name)}.partial-*"):
        _remove(leftover)


def flush(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power cut."""
    if path.is_dir() and not hasattr(os, "O_DIRECTORY"):
        return  # a system that cannot open folders
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def reason_of(error: BaseException) -> str:
    """Why an operation on a file failed, in the system's words where there are any."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


@contextmanager
def _written_aside(
    path: Path, durable: bool, on_disk: Collection[str], move: Callable[[Path, Path], object]
) -> Iterator[Path]:
    path = Path(os.path.abspath(path))  # "." has no name to write beside
    # The number of a thread is that of no other thread or process: two writers never meet in one name.
    partial = path.with_name(f".{path.name}.partial-{threading.get_native_id()}")
    _remove(partial)  # of a killed process that had our number
    try:
        yield partial
        if durable:
            for written in partial.rglob("*") if partial.is_dir() else ():
                if written.name not in on_disk:
                    flush(written)
            flush(partial)
        move(partial, path)
        if durable:
            flush(path.parent)
    except BaseException:
        _remove(partial)
        raise


def _take_the_place_of(partial: Path, path: Path) -> None:
    if not (partial.is_dir() and path.is_dir() and not path.is_symlink()):
        partial.replace(path)
        partial.unlink(missing_ok=True)  # two names of one file: the system leaves both
        return
    # A folder cannot be renamed over another one: that one steps aside whole, so that nobody sees half of it.
    before = partial.with_name(f"{partial.name}-before")
    _remove(before)
    path.rename(before)
    try:
        partial.rename(path)
    except BaseException:
        before.rename(path)
        raise
    _remove(before)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
