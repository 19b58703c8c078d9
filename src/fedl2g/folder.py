"""Safe access to folders whose content may come from somebody else: nothing in them leads out of them.

A name is looked up relative to the folder, one part at a time, and links are not followed. Only regular files are
opened, and only up to a limit on their size. New files are written into a temporary folder and then renamed.
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
SMALL = MIB  # the limit for files of settings or results
_RELATIVE = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")  # not on Windows: names are checked there
_FOLDER = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0) | os.O_RDONLY
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # opening a FIFO would wait for its writer
_LINK_ERRORS = (errno.ELOOP, errno.ENOTDIR, errno.EMLINK)  # the errors of systems for a link with O_NOFOLLOW


@dataclass(frozen=True)
class Folder:
    """A folder: `root`, as the user named it, and the parts of the path below it, none of which may be a link.

    Methods take names such as "checkpoints/round-000002/state.json". OSErrors (a missing file, a full disk) are left to
    the caller; something that must not be opened raises RunError.
    """

    root: Path
    parts: tuple[str, ...] = ()

    def __truediv__(self, name: str) -> Folder:
        """A folder in this one."""
        return Folder(self.root, (*self.parts, *_split(name)))

    @property
    def path(self) -> Path:
        """The whole path, for messages."""
        return self.root.joinpath(*self.parts)

    def read(self, name: str, limit: int = SMALL) -> bytes:
        """The content of a file of at most `limit` bytes."""
        with self.opened(name, limit) as file:
            size = os.fstat(file.fileno()).st_size
            content = file.read(size + 1)  # `read` takes memory for all that it is asked for
            if len(content) > size:  # it has grown since it was opened
                content += file.read(limit + 1 - len(content))
        if len(content) > limit:
            _too_large(self.path / name, limit)
        return content

    def text(self, name: str, limit: int = SMALL) -> str:
        """The content of a text file; UnicodeDecodeError if it is not UTF-8."""
        return self.read(name, limit).decode("utf-8")

    @contextmanager
    def opened(self, name: str, limit: int) -> Iterator[BinaryIO]:
        """A file of at most `limit` bytes, open for reading."""
        with self._file(name, os.O_RDONLY) as file:
            if os.fstat(file.fileno()).st_size > limit:
                _too_large(self.path / name, limit)
            yield file

    @contextmanager
    def checked_path(self, name: str, limit: int) -> Iterator[Path]:
        """A path to the very file that was opened and checked, for libraries that open files themselves."""
        with self.opened(name, limit) as file:
            descriptor = Path(f"/dev/fd/{file.fileno()}")
            yield descriptor if descriptor.exists() else self.path / name

    @contextmanager
    def appending(self, name: str) -> Iterator[BinaryIO]:
        """A file, created if it does not exist, open for reading and for appending."""
        with self._file(name, os.O_RDWR | os.O_APPEND | os.O_CREAT) as file:
            if os.fstat(file.fileno()).st_nlink > 1:
                raise RunError(
                    f"{self.path / name}: has a second name (a hard link), whose content would change too; expected a "
                    "file with one name; replace it by a copy of itself"
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
        """Create a folder in this one, or this one itself, unless it exists."""
        self.root.mkdir(parents=True, exist_ok=True)
        parts = (*self.parts, *_split(name))
        for depth in range(len(parts)):
            inner = Folder(self.root, parts[:depth])
            if inner._kind(parts[depth]) is None:
                with inner._opened_folder() as at:
                    os.mkdir(parts[depth] if at is not None else inner.path / parts[depth], dir_fd=at)
        with Folder(self.root, parts)._opened_folder():
            pass  # refuses links

    def remove(self, name: str) -> None:
        """Remove a file, a link or a whole folder, if it exists."""
        if self._kind(name) is not None:
            with self._parent(name) as (parent, _):
                files.remove(self.path / name, parent=parent)

    def remove_leftovers(self) -> None:
        """Remove temporary files of killed processes; the caller ensures that no other process is writing here."""
        for name in self.names():
            if files.is_leftover(name):
                self.remove(name)

    def names(self) -> list[str]:
        """The sorted names of the folder's entries; none if it does not exist."""
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
        """Size and times of an entry (of a link itself, not of its target); None if it does not exist."""
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
                descriptor = os.open(where, how | _NO_LINK | _NO_WAIT, 0o666, dir_fd=parent)
            except OSError as error:
                if error.errno in (*_LINK_ERRORS, errno.ENXIO, errno.EISDIR):
                    _not_plain(self.path / name)
                raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            _not_plain(self.path / name)
        with os.fdopen(descriptor, "rb" if how == os.O_RDONLY else "ab+") as file:
            yield file

    @contextmanager
    def _parent(self, name: str) -> Iterator[tuple[int | None, str]]:
        """An open descriptor of the folder that holds a file, and the last part of the file's name."""
        *parts, last = _split(name)
        with Folder(self.root, (*self.parts, *parts))._opened_folder() as descriptor:
            yield descriptor, last

    @contextmanager
    def _opened_folder(self) -> Iterator[int | None]:
        """A descriptor of the folder; None on systems without `openat`, where only names can be checked."""
        if not _RELATIVE:
            for depth in range(1, len(self.parts) + 1):
                if self.root.joinpath(*self.parts[:depth]).is_symlink():
                    _not_plain(self.root.joinpath(*self.parts[:depth]))
            yield None
            return
        with ExitStack() as stack:
            descriptor = os.open(self.root, _FOLDER)
            stack.callback(os.close, descriptor)
            for depth, part in enumerate(self.parts, 1):
                try:
                    descriptor = os.open(part, _FOLDER | _NO_LINK, dir_fd=descriptor)
                except OSError as error:
                    if error.errno in _LINK_ERRORS:
                        _not_plain(self.root.joinpath(*self.parts[:depth]), "a folder")
                    raise
                stack.callback(os.close, descriptor)
            yield descriptor


def read_given(path: Path, limit: int = SMALL) -> bytes:
    """The content of a file that the user named, or that another party sent: a link is followed, a device never read.

    OSErrors are left to the caller.
    """
    descriptor = os.open(path, os.O_RDONLY | _NO_WAIT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            _not_plain(path)
        content = file.read(min(found.st_size, limit) + 1)
    if len(content) > limit:
        _too_large(path, limit)
    return content


def _split(name: str) -> tuple[str, ...]:
    """The parts of a name inside a folder; RunError if it leads out of the folder."""
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
