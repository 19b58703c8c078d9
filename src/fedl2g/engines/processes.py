"""Worker processes and their connections; a process may serve several runs, one after the other."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from fedl2g.engines import wire
from fedl2g.interrupts import SIGNALS, process_ended, start_process
from fedl2g.payload import Payload

WORKER = "fedl2g.engines.worker"
# Before the imports, which take seconds, the worker makes sure that it ends with this process.
_START = "from fedl2g import interrupts; interrupts.end_with_parent(); from {module} import main; main()"


class WorkerProcess:
    """A process that serves a connection, and whether it still owes an answer."""

    def __init__(self, module: str = WORKER) -> None:
        self.module, self.folder, self.import_path = module, os.getcwd(), _import_path()
        self.busy = False
        ours, theirs = socket.socketpair()
        self._process = start_process(
            [sys.executable, "-c", _START.format(module=module), str(theirs.fileno())],
            first=None,  # it finishes the round
            blocked=SIGNALS,
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": self.import_path},
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self.connection = Connection(ours.detach())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, message: bytes) -> None:
        """Send a request; the process is busy until it has answered."""
        self.busy = True
        wire.send_packed(self.connection, message)

    def receive(self) -> tuple[wire.Header, Payload]:
        """The next part of the answer; the last one says `done` or `error`."""
        header, payload = wire.receive(self.connection)
        self.busy = "done" not in header and "error" not in header
        return header, payload

    def exit_code(self) -> int | None:
        """How a process whose connection broke has ended; None if it has not within five seconds."""
        try:
            return self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self.end()

    def end(self) -> None:
        """Close the connection, which ends the process."""
        self.connection.close()
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        process_ended(self._process)


class WorkerPool:
    """Processes that wait for the next run: starting one and importing torch takes seconds."""

    def __init__(self) -> None:
        self._idle: list[WorkerProcess] = []

    def take(self, module: str) -> WorkerProcess:
        """A waiting process of this module, started in this folder with this import path, or a new one."""
        wanted = (module, os.getcwd(), _import_path())
        for process in self._idle:
            if (process.module, process.folder, process.import_path) == wanted and process.alive:
                self._idle.remove(process)
                return process
        return WorkerProcess(module)

    def give_back(self, process: WorkerProcess) -> None:
        """Keep a process for the next run, unless it has died or has not finished an answer."""
        if process.busy or not process.alive:
            process.end()
        else:
            self._idle.append(process)

    def close(self) -> None:
        """End the waiting processes."""
        for process in self._idle:
            process.end()
        self._idle.clear()


_shared: list[WorkerPool] = []


@contextmanager
def shared_workers(pool: WorkerPool) -> Iterator[None]:
    """Runs inside the block take their worker processes from the pool, and give them back."""
    _shared.append(pool)
    try:
        yield
    finally:
        _shared.remove(pool)


def take_process(module: str = WORKER) -> WorkerProcess:
    """A process that runs this module: from the shared pool inside a block of `shared_workers`, else a new one."""
    return _shared[-1].take(module) if _shared else WorkerProcess(module)


def release_process(process: WorkerProcess) -> None:
    """Give a process back to the shared pool at the end of a run, or end it."""
    if _shared:
        _shared[-1].give_back(process)
    else:
        process.end()


def _import_path() -> str:
    return os.pathsep.join(path or os.getcwd() for path in sys.path)
