"""The lock of a run directory: held while a process works on the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fedl2g.errors import RunError
from fedl2g.folder import Folder
from fedl2g.runs.layout import LOCK

_A_MOMENT = 0.3  # seconds: `is_locked` holds the lock for a moment


@contextmanager
def locked(folder: Folder, wait: float = 0.0) -> Iterator[None]:
    """Lock the folder against other processes; waits up to `wait` seconds for the lock."""
    import filelock

    found = folder.status(LOCK)
    if found is not None and (found.st_size or found.st_nlink > 1 or not folder.is_file(LOCK)):
        raise RunError(f"{folder.path / LOCK}: not an empty file of its own; expected one; remove it")
    lock = filelock.FileLock(folder.path / LOCK, timeout=max(wait, _A_MOMENT))
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise RunError(
            f"{folder.path}: in use by another process; wait for it to end, or choose another --out"
        ) from error
    except OSError as error:
        raise RunError(
            f"{folder.path}: cannot be written ({error.strerror}); make it writable, or choose another --out"
        ) from error
    try:
        yield
    finally:
        lock.release()


def is_locked(folder: Folder) -> bool:
    """Whether a process holds the lock now."""
    import filelock

    found = folder.status(LOCK)
    if found is None or found.st_size or found.st_nlink > 1 or not folder.is_file(LOCK):
        return False  # not a lock of ours: filelock before 3.20 would empty such a file
    lock = filelock.FileLock(folder.path / LOCK, timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        return True
    except OSError:  # not ours to lock: a directory that cannot be written
        return False
    lock.release()
    return False
