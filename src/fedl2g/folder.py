"""Folders that somebody else may have filled: what is in them is data, and is never followed out of them.

A name in such a folder is looked up relative to it, one part after the other, and through no link. Only regular files
are opened, and none that is larger than its kind can be. New files are made in a folder of our own and renamed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn

from fedl2g import files
from fedl2g.errors import RunError

KIB, MIB, GIB = 2**10, 2**20, 2**30
SMALL = MIB  # bytes of a file that describes something: nobody's settings or results are longer
_RELATIVE = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")  # not on Windows: names are checked there
_HERE = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0) | os.O_RDONLY
_PLAIN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_AT_ONCE = getattr(os, "O_NONBLOCK", 0)  # opening a FIFO waits for nobody
_LINKED = (errno.ELOOP, errno.ENOTDIR, errno.EMLINK)  # what systems say of a link that is not to be followed


@dataclass(frozen=True)
class Folder:
    """A folder: `root`, as the user named it, and the way from there, which leads through no link.

    Methods take names such as "checkpoints/round-000002/state.json". OSErrors, of a file that is missing or a disk that
    is full, are left to the caller; what is not to be opened is a RunError.
    """

    root: Path
    way: tuple[str, ...] = ()

    def __truediv__(self, name: str) -> Folder:
        """A folder in this one."""
        return Folder(self.root, (*self.way, *_parts(name)))

    @property
    def path(self) -> Path:
        """Where it is, for messages."""
        return self.root.joinpath(*self.way)

    def read(self, name: str, limit: int = SMALL) -> bytes:
        """The content of a file of at most `limit` bytes."""
        with self.opened(name, limit) as file:
            content = file.read(limit + 1)
        if len(content) > limit:  # it has grown since it was opened
            _too_large(self.path / name, limit)
        return content

    def text(self, name: str, limit: int = SMALL) -> str:
        """The content of a text file; UnicodeDecodeError if it is none."""
        return self.read(name, limit).decode("utf-8")

    @contextmanager
    def opened(self, name: str, limit: int) -> Iterator[BinaryIO]:
        """A file of at most `limit` bytes, open for reading."""
        with self._file(name, os.O_RDONLY) as file:
            if os.fstat(file.fileno()).st_size > limit:
                _too_large(self.path / name, limit)
            yield file

    @contextmanager
    def held(self, name: str, limit: int) -> Iterator[Path]:
        """A path to the very file that was opened and checked, for libraries that want to open files themselves."""
        with self.opened(name, limit) as file:
            known = Path(f"/dev/fd/{file.fileno()}")
            yield known if known.exists() else self.path / name

    @contextmanager
    def appending(self, name: str) -> Iterator[BinaryIO]:
        """A file, made if it does not exist, open for reading and for writing at its end."""
        with self._file(name, os.O_RDWR | os.O_APPEND | os.O_CREAT) as file:
            if os.fstat(file.fileno()).st_nlink > 1:
                raise RunError(
                    f"{self.path / name}: is the same file as another one, which would be written too; replace it by a "
                    "copy of itself"
                )
            yield file

    @contextmanager
    def replacing(self, name: str, *, durable: bool = True, on_disk: Collection[str] = ()) -> Iterator[Path]:
        """As `files.replacing`, in this folder."""
        with (
            self._parent(name) as (parent, _),
            files.replacing(self.path / name, durable=durable, on_disk=on_disk, parent=parent) as partial,
        ):
            yield partial

    def write_text(self, name: str, text: str, *, durable: bool = True) -> None:
        """Replace a text file atomically; raises RunError if it cannot be written."""
        try:
            with self.replacing(name, durable=durable) as partial:
                partial.write_text(text, encoding="utf-8")
        except OSError as error:
            raise files.cannot_write(self.path / name, error) from error

    def make(self, name: str = "") -> None:
        """Make a folder in this one, or this one itself, unless it exists."""
        self.root.mkdir(parents=True, exist_ok=True)
        way = (*self.way, *_parts(name))
        for depth in range(len(way)):
            inner = Folder(self.root, way[:depth])
            if inner._kind(way[depth]) is None:
                with inner._opened_folder() as at:
                    os.mkdir(way[depth] if at is not None else inner.path / way[depth], dir_fd=at)
        with Folder(self.root, way)._opened_folder():
            pass  # no link

    def remove(self, name: str) -> None:
        """Remove a file, a link or a folder with all that is in it, if it exists."""
        if self._kind(name) is not None:
            with self._parent(name) as (parent, _):
                files.remove(self.path / name, parent=parent)

    def remove_leftovers(self) -> None:
        """Remove temporary files of killed processes; the caller ensures that no other process is writing here."""
        for name in self.names():
            if files.is_leftover(name):
                self.remove(name)

    def names(self) -> list[str]:
        """The names of all that is in the folder, in order; none if it does not exist."""
        try:
            with self._opened_folder() as at:
                return sorted(os.listdir(self.path if at is None else at))
        except FileNotFoundError:
            return []

    def is_file(self, name: str) -> bool:
        """Whether there is a regular file of this name."""
        return self._kind(name) == stat.S_IFREG

    def is_folder(self, name: str) -> bool:
        """Whether there is a folder of this name; a link to one is refused."""
        kind = self._kind(name)
        if kind is not None and stat.S_ISLNK(kind):
            _not_plain(self.path / name)
        return kind == stat.S_IFDIR

    def require_plain(self, limit: int) -> None:
        """Refuse links, devices and more than `limit` bytes below: for libraries that open a folder's files themselves.

        There is nothing to refuse if the folder does not exist.
        """
        left = limit
        folders = [self]
        for folder in folders:  # grows as folders are found
            for name in folder.names():
                found = folder.status(name)
                if found is not None and stat.S_ISDIR(found.st_mode):
                    folders.append(folder / name)
                elif found is not None and (not stat.S_ISREG(found.st_mode) or found.st_nlink > 1):
                    _not_plain(folder.path / name)
                left -= 0 if found is None else found.st_size
        if left < 0:
            _too_large(self.path, limit)

    def status(self, name: str) -> os.stat_result | None:
        """Size and times of what has this name, a link itself; None if there is nothing."""
        try:
            with self._parent(name) as (parent, last):
                return os.stat(last if parent is not None else self.path / name, dir_fd=parent, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _kind(self, name: str) -> int | None:
        found = self.status(name)
        return None if found is None else stat.S_IFMT(found.st_mode)

    @contextmanager
    def _file(self, name: str, how: int) -> Iterator[BinaryIO]:
        with self._parent(name) as (parent, last):
            where = last if parent is not None else self.path / name
            try:
                descriptor = os.open(where, how | _PLAIN | _AT_ONCE, 0o666, dir_fd=parent)
            except OSError as error:
                if error.errno in (*_LINKED, errno.ENXIO, errno.EISDIR):
                    _not_plain(self.path / name)
                raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            _not_plain(self.path / name)
        with os.fdopen(descriptor, "rb" if how == os.O_RDONLY else "ab+") as file:
            yield file

    @contextmanager
    def _parent(self, name: str) -> Iterator[tuple[int | None, str]]:
        """The folder that holds a file, open, and the file's last name."""
        *way, last = _parts(name)
        with Folder(self.root, (*self.way, *way))._opened_folder() as descriptor:
            yield descriptor, last

    @contextmanager
    def _opened_folder(self) -> Iterator[int | None]:
        """A descriptor of the folder; None where files cannot be opened relative to one: names are checked instead."""
        if not _RELATIVE:
            for depth in range(1, len(self.way) + 1):
                if self.root.joinpath(*self.way[:depth]).is_symlink():
                    _not_plain(self.root.joinpath(*self.way[:depth]))
            yield None
            return
        with ExitStack() as stack:
            descriptor = os.open(self.root, _HERE)
            stack.callback(os.close, descriptor)
            for depth, part in enumerate(self.way, 1):
                try:
                    descriptor = os.open(part, _HERE | _PLAIN, dir_fd=descriptor)
                except OSError as error:
                    if error.errno in _LINKED:
                        _not_plain(self.root.joinpath(*self.way[:depth]), "a folder")
                    raise
                stack.callback(os.close, descriptor)
            yield descriptor


def _parts(name: str) -> tuple[str, ...]:
    """The parts of a name inside a folder; one that leads out of it is refused."""
    parts = tuple(name.replace(os.sep, "/").split("/")) if name else ()
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise RunError(f"{name!r}: not a name inside a folder; expected one without '..' that does not start with '/'")
    return parts


def _not_plain(path: Path, expected: str = "a regular file") -> NoReturn:
    raise RunError(
        f"{path}: is a link, a device or something else that is not read or written; expected {expected}; put a copy "
        "in its place"
    )


def _too_large(path: Path, limit: int) -> NoReturn:
    size = f"{limit // MIB} MiB" if limit >= MIB else f"{limit // KIB} KiB"
    raise RunError(f"{path}: too large; expected at most {size}; restore it from a copy")
