"""Removes what a simulation leaves behind, in a process of its own: it outlives `kill -9` of the simulation's.

It waits until its standard input is closed, which happens however the process that started it ends. Then it ends every
process that still writes below the simulation's folder, which are Ray's (two of them do not notice by themselves for
minutes), and removes the folder. It runs as a script, without the package: it must start at once and import nothing.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

_MOST_SECONDS = 10.0
_WRITING = os.O_WRONLY | os.O_RDWR


def main(folder: str, owner: int) -> None:
    """Wait for the end of the owner, or for its word; then clean up."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    sys.stdin.buffer.read()
    end = time.monotonic() + _MOST_SECONDS
    while (found := _writers(folder) - {owner, os.getpid()}) and time.monotonic() < end:
        for process in found:
            _kill(process)
        time.sleep(0.1)
    shutil.rmtree(folder, ignore_errors=True)


def _writers(folder: str) -> set[int]:
    """The processes of this user that have a file below the folder open for writing."""
    return {int(process.name) for process in Path("/proc").glob("[0-9]*") if _writes(process, f"{folder}/")}


def _writes(process: Path, start: str) -> bool:
    try:
        opened = list((process / "fd").iterdir())
    except OSError:  # gone, or not ours
        return False
    for descriptor in opened:
        try:
            if os.readlink(descriptor).startswith(start) and _flags(process, descriptor.name) & _WRITING:
                return True
        except (OSError, ValueError):
            continue
    return False


def _flags(process: Path, descriptor: str) -> int:
    lines = (process / "fdinfo" / descriptor).read_text().splitlines()
    return int(next(line for line in lines if line.startswith("flags:")).split()[1], 8)


def _kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except OSError:
        return


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
