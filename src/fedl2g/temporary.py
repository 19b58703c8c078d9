"""Temporary folders: removed by their process, or by the next process if theirs was killed."""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

_LOCK = "lock"
_NEW_SECONDS = 10.0  # younger folders are left alone: their owner may not have locked them yet
_process = os.getpid()
_locks: dict[Path, object] = {}  # of the folders of this process; a lock ends with its process


def temporary_folder(kind: str, base: Path | None = None) -> Path:
    """A new private folder `fedl2g-KIND-...`; those of this kind that killed processes left are removed."""
    from filelock import FileLock

    base = Path(tempfile.gettempdir()) if base is None else base
    for folder in base.glob(f"fedl2g-{kind}-*"):
        if _is_ours(folder):
            _remove_if_abandoned(folder)
    folder = Path(tempfile.mkdtemp(prefix=f"fedl2g-{kind}-", dir=base))
    lock = FileLock(folder / _LOCK, timeout=0)
    lock.acquire()
    _locks[folder] = lock
    return folder


def remove_folder(folder: Path) -> None:
    """Remove a temporary folder of this process."""
    shutil.rmtree(folder, ignore_errors=True)
    _locks.pop(folder, None)


@atexit.register
def _remove_all() -> None:
    """Remove what is left when the process ends; not in a fork of it, whose folders are not its own."""
    if os.getpid() == _process:
        for folder in list(_locks):
            remove_folder(folder)


def _is_ours(folder: Path) -> bool:
    """Whether it is a folder of this user, not of another one under the same name, and not brand-new."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    ours = not hasattr(os, "getuid") or found.st_uid == os.getuid()
    return stat.S_ISDIR(found.st_mode) and ours and time.time() - found.st_mtime > _NEW_SECONDS


def _remove_if_abandoned(folder: Path) -> None:
    from filelock import FileLock, Timeout

    try:
        with FileLock(folder / _LOCK, timeout=0):
            shutil.rmtree(folder, ignore_errors=True)
    except (Timeout, OSError):  # in use, or not to be removed
        return
