"""The child processes of a site, which end with the process that started them, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from fedl2g.interrupts import process_ended, start_process

_PATIENCE = 10.0  # seconds for an orderly end


def start_child(module: str, *arguments: str, env: dict[str, str], pass_fds: Sequence[int] = ()) -> Child:
    """Start a module of this package; it must call `end_with_parent` first."""
    path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    process = start_process(
        [sys.executable, "-m", module, *arguments],
        first=None,
        stdin=subprocess.PIPE,
        pass_fds=pass_fds,
        env={**os.environ, **env, "PYTHONPATH": path},
    )
    return Child(process)


class Child:
    """A process whose standard input stays open for as long as it should live."""

    def __init__(self, process: subprocess.Popen[Any]) -> None:
        self._process = process

    @property
    def exit_code(self) -> int | None:
        """How the process has ended; None while it runs."""
        return self._process.poll()

    def end(self) -> None:
        """Ask for an orderly end, and wait for it."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(_PATIENCE + 5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._finish()

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._finish()

    def how_it_ended(self) -> str:
        """The end of a process that has ended, in words."""
        code = self._process.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def _finish(self) -> None:
        self._process.wait()
        process_ended(self._process)


def end_with_parent(*, orderly: bool) -> None:
    """In a child: end when standard input closes; if `orderly`, by SIGTERM with ten seconds to finish, else at once."""

    def watch() -> None:
        with suppress(OSError):
            while os.read(0, 1024):
                pass
        if orderly:
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait(_PATIENCE)
        os._exit(1)

    threading.Thread(target=watch, name="end with parent", daemon=True).start()
