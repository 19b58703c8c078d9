"""Ctrl-C: the first is acknowledged at once and asks for an orderly end, the second ends at once.

Python runs a signal's handler only between two instructions of the main thread, which may be inside torch for seconds.
In the command a thread of its own therefore reads the signals: it acknowledges the first and ends the process at the
second. SIGTERM, which schedulers send before they kill, counts as Ctrl-C. To end at once is safe because runs survive
`kill -9`: checkpoints are complete or absent, and locks end with their process.

In a Python session, where the process is not ours, a second Ctrl-C raises KeyboardInterrupt.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

EXIT_CODE = 130  # 128 + SIGINT, as shells have it
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_AGAIN = "press Ctrl-C again to stop at once"


class _Interrupts:
    """The orderly ends that were promised, the innermost last, and the processes that must not outlive this one."""

    def __init__(self) -> None:
        self.listening = False  # a thread acknowledges the first Ctrl-C and carries out the second
        self.pressed = False
        self.handled = 0
        self.starting = False  # a process, which must be known before anything is raised
        self.postponed = False
        self.ends: list[tuple[Callable[[], str], Callable[[], None]]] = []
        self.before_the_end: list[Callable[[], None]] = []
        self.children: dict[subprocess.Popen[Any], tuple[signal.Signals | None, signal.Signals]] = {}

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The handler of the signals, in the main thread."""
        self.handled += 1
        if self.handled > 1:
            if self.listening:
                return
            raise KeyboardInterrupt
        if not self.listening:
            self.acknowledge()
        if self.ends:
            self.ends[-1][1]()
        elif self.starting:
            self.postponed = True
        else:
            raise KeyboardInterrupt

    def acknowledge(self) -> None:
        self.pressed = True
        _say(f"{self.ends[-1][0]() if self.ends else 'stopping'}; {_AGAIN}")
        for child, (first, _) in list(self.children.items()):
            if first is not None:
                child.send_signal(first)

    def end_at_once(self) -> None:
        _say("stopped at once", end="\x1b[?25h" if sys.stderr.isatty() else "")  # a progress bar hides the cursor
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # whatever fails because its processes end here has nothing to say
        for child, (_, second) in list(self.children.items()):
            child.send_signal(second)
        for act in self.before_the_end:
            act()
        os._exit(EXIT_CODE)

    def listen(self, signals: socket.socket) -> None:
        """Read the signals as they arrive, each a byte."""
        pressed = 0
        while numbers := signals.recv(1):
            if numbers[0] in _SIGNALS:
                pressed += 1
                if pressed > 1:
                    self.end_at_once()
                self.acknowledge()


_interrupts = _Interrupts()


@contextmanager
def two_step_interrupts() -> Iterator[None]:
    """The command's handling of Ctrl-C: inside the block both steps take effect at once, whatever runs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    writing, reading = socket.socketpair()
    writing.setblocking(False)
    handlers = {number: signal.signal(number, _interrupts.handle) for number in _SIGNALS}
    before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    _interrupts.listening, _interrupts.pressed, _interrupts.handled = True, False, 0
    _interrupts.postponed = False
    listener = threading.Thread(target=_interrupts.listen, args=(reading,), name="interrupts", daemon=True)
    listener.start()
    try:
        yield
    finally:
        if not _interrupts.handled:  # else the process is about to end, and a second Ctrl-C must still be heard
            signal.set_wakeup_fd(before)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            _interrupts.listening = False
            writing.close()
            listener.join()
            reading.close()


@contextmanager
def orderly_end(promise: Callable[[], str], stop: Callable[[], None]) -> Iterator[None]:
    """Inside the block the first Ctrl-C prints the promise and calls `stop`; both must return at once."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield
        return
    _interrupts.ends.append((promise, stop))
    before = None
    if not _interrupts.listening and len(_interrupts.ends) == 1:  # a Python session
        _interrupts.pressed, _interrupts.handled = False, 0
        before = signal.signal(signal.SIGINT, _interrupts.handle)
    try:
        yield
    finally:
        _interrupts.ends.pop()
        if before is not None:
            signal.signal(signal.SIGINT, before)


@contextmanager
def before_the_end(act: Callable[[], None]) -> Iterator[None]:
    """Inside the block a second Ctrl-C calls `act`, which must return soon, before it ends the process."""
    _interrupts.before_the_end.append(act)
    try:
        yield
    finally:
        _interrupts.before_the_end.remove(act)


def interrupted() -> bool:
    """Whether Ctrl-C was pressed: nothing new should be started."""
    return _interrupts.pressed


def start_process(
    arguments: list[str], *, first: signal.Signals | None, second: signal.Signals, **options: Any
) -> subprocess.Popen[Any]:
    """Start a process that the terminal's Ctrl-C does not reach: it gets the signals `first` and `second` instead."""
    # The mask is inherited: from its first instruction on, the process is not interrupted.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    _interrupts.starting = True
    try:
        process = subprocess.Popen(arguments, **options)
    finally:
        _interrupts.starting = False
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if _interrupts.postponed:
        process.kill()
        process.wait()
        raise KeyboardInterrupt
    _interrupts.children[process] = (first, second)
    if _interrupts.pressed and first is not None:  # between the decision to start it and its start
        process.send_signal(first)
    return process


def process_ended(process: subprocess.Popen[Any]) -> None:
    """A process of `start_process` has ended and was waited for."""
    _interrupts.children.pop(process, None)


def _say(text: str, end: str = "") -> None:
    """Write to stderr, over a progress bar if there is one, without the locks that the main thread may hold."""
    start = "\r\x1b[2K" if sys.stderr.isatty() else ""
    with suppress(OSError, ValueError):
        os.write(2, f"{start}fedl2g: {text}\n{end}".encode())
