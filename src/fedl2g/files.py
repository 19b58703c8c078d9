"""Atomic file writes: a reader, or a crash, sees either the old content or the new."""

from __future__ import annotations

import glob
import os
import secrets
import shlex
import shutil
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedl2g.errors import RunError


@contextmanager
def replacing(
    path: Path, *, durable: bool = True, on_disk: Collection[str] = (), parent: int | None = None
) -> Iterator[Path]:
    """Yield a path that does not exist yet, for a file or folder which replaces `path` when the block ends.

    If the block fails, what it wrote is removed and `path` is unchanged. `durable` flushes everything to disk first, to
    survive a power cut, except the files of a new folder that are named in `on_disk` (which the block may extend): they
    are flushed already. `parent` is an open descriptor of the parent folder, for callers that must not look it up by
    name again (`fedl2g.folder`). OSErrors are left to the caller.
    """
    with _written_aside(path, durable, on_disk, parent, over=True) as partial:
        yield partial


@contextmanager
def appearing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Like `replacing`, for a new folder: raises OSError if a non-empty one exists."""
    with _written_aside(path, durable, (), None, over=False) as partial:
        yield partial


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """Replace a text file atomically; raises RunError if it cannot be written."""
    try:
        with replacing(path, durable=durable) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> RunError:
    """The error for a file that could not be replaced."""
    return RunError(f"{path}: cannot be written ({reason_of(error)}); the previous content is intact")


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove temporary files that killed processes left in this folder, or only those for the file `name`.

    The caller must ensure that no other process is writing there.
    """
    for leftover in folder.glob(f".{'*' if name is None else glob.escape(name)}.partial-*"):
        remove(leftover)


def is_leftover(name: str) -> bool:
    """Whether this is the name of a temporary file or folder of this module."""
    return name.startswith(".") and ".partial-" in name


def remove(path: Path, *, parent: int | None = None) -> None:
    """Remove a file, a link or a whole folder, if it exists; `parent` as for `replacing`."""
    name = path if parent is None else path.name
    try:
        if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            shutil.rmtree(name, ignore_errors=True, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        pass


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
    """A path quoted for a shell, for commands in messages."""
    return shlex.quote(str(path))


def reason_of(error: BaseException) -> str:
    """The reason a file operation failed, preferably the operating system's message."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


@contextmanager
def _written_aside(
    path: Path, durable: bool, on_disk: Collection[str], parent: int | None, *, over: bool
) -> Iterator[Path]:
    path = Path(os.path.abspath(path))  # "." has no name
    # A new folder with an unpredictable name: nobody can have placed a link where the new file will be created.
    aside = path.with_name(f".{path.name}.partial-{secrets.token_hex(6)}")
    partial, before = aside / path.name, aside / "before"

    def move(source: Path, target: Path) -> None:
        if parent is None:
            os.replace(source, target)
        else:
            names = (source.relative_to(path.parent), target.relative_to(path.parent))
            os.replace(*names, src_dir_fd=parent, dst_dir_fd=parent)

    os.mkdir(aside if parent is None else aside.name, dir_fd=parent)
    try:
        yield partial
        if durable:
            for written in partial.rglob("*") if partial.is_dir() else ():
                if str(written.relative_to(partial)) not in on_disk:
                    flush(written)
            flush(partial)
        if over and partial.is_dir() and path.is_dir() and not path.is_symlink():
            # A folder cannot be renamed over another one, so the old one is moved away first.
            move(path, before)
            try:
                move(partial, path)
            except BaseException:
                move(before, path)
                raise
        else:
            move(partial, path)
        if durable:
            flush(path.parent)
    finally:
        remove(aside, parent=parent)  # may still hold the file: rename(2) keeps both names of one hard-linked file
