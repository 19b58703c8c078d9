"""Writing files so that a reader, or a crash, sees the old content or the new, never half of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """A name beside `path` to write a file or a folder to; it takes the place of `path` when the block ends.

    If the block fails, what was written is removed and `path` is as it was. `durable` flushes everything to the disk
    first, so that not even a power cut loses it. An OSError is the caller's to explain.
    """
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    _remove(partial)  # what a killed process with our number left
    try:
        yield partial
        if durable:
            for written in sorted(partial.rglob("*")) if partial.is_dir() else ():
                flush(written)
            flush(partial)
        if partial.is_dir() and path.exists():
            _remove(path)  # a folder cannot be renamed over another one that is not empty
        partial.replace(path)
        if durable:
            flush(path.parent)
    except BaseException:
        _remove(partial)
        raise


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """Replace a text file in one step."""
    with replacing(path, durable=durable) as partial:
        partial.write_text(text, encoding="utf-8")


def flush(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def reason_of(error: BaseException) -> str:
    """Why an operation on a file failed, in the system's words where there are any."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
