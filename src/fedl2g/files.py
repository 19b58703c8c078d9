"""Atomic file writes: a reader, or a crash, sees either the old content or the new."""

from __future__ import annotations

import glob
import os
import shlex
import shutil
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedl2g.errors import RunError


@contextmanager
def replacing(path: Path, *, durable: bool = True, on_disk: Collection[str] = ()) -> Iterator[Path]:
    """Yield a temporary path next to `path` for a file or folder, which replaces `path` when the block ends.

    If the block fails, the temporary file is removed and `path` is unchanged. `durable` flushes everything to disk
    first, to survive a power cut, except files of a folder named in `on_disk` (which the block may extend) because they
    are flushed already. OSErrors are left to the caller.
    """
    with _written_aside(path, durable, on_disk, _replace) as partial:
        yield partial


@contextmanager
def appearing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Like `replacing`, for a new folder: raises OSError if a non-empty one exists."""
    with _written_aside(path, durable, (), Path.rename) as partial:
        yield partial


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """Replace a text file atomically; raises RunError if it cannot be written."""
    try:
        with replacing(path, durable=durable) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot write {path}: {reason_of(error)}; what was there before is intact") from error


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove temporary files that killed processes left in this folder, or only those for the file `name`.

    The caller must ensure that no other process is writing there.
    """
    for leftover in folder.glob(f".{'*' if name is None else glob.escape(name)}.partial-*"):
        _remove(leftover)


def flush(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    if path.is_dir() and not hasattr(os, "O_DIRECTORY"):
        return  # folders cannot be opened on this system
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def quoted(path: Path) -> str:
    """A path as it is written in a shell, for commands in messages."""
    return shlex.quote(str(path))


def reason_of(error: BaseException) -> str:
    """The reason a file operation failed, preferably the operating system's message."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


@contextmanager
def _written_aside(
    path: Path, durable: bool, on_disk: Collection[str], move: Callable[[Path, Path], object]
) -> Iterator[Path]:
    path = Path(os.path.abspath(path))  # "." has no name
    # Native thread ids are unique across processes, so two writers never use the same name.
    partial = path.with_name(f".{path.name}.partial-{threading.get_native_id()}")
    _remove(partial)  # left by a killed process with the same thread id
    try:
        yield partial
        if durable:
            for written in partial.rglob("*") if partial.is_dir() else ():
                if str(written.relative_to(partial)) not in on_disk:
                    flush(written)
            flush(partial)
        move(partial, path)
        if durable:
            flush(path.parent)
    except BaseException:
        _remove(partial)
        raise


def _replace(partial: Path, path: Path) -> None:
    if not (partial.is_dir() and path.is_dir() and not path.is_symlink()):
        partial.replace(path)
        partial.unlink(missing_ok=True)  # hard links to the same file: rename(2) leaves both
        return
    # A folder cannot be renamed over another: the old one is renamed first, so that nobody sees a partial one.
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
