"""Ctrl-C: the first is acknowledged at once and asks for an orderly end; the second ends the process at once.

Python runs signal handlers only between instructions of the main thread, which may be inside torch for seconds. In the
command a separate thread therefore reads the signals: it acknowledges the first and ends the process at the second.
SIGTERM (sent by schedulers before they kill) and SIGHUP (a closed terminal) count as Ctrl-C. Ending at once is safe
because runs survive `kill -9`: checkpoints are complete or absent, and locks end with their process.

In a Python session, where the process is not ours, a second Ctrl-C raises KeyboardInterrupt.

A process started here ends with this one, however this one ends: it waits on a pipe whose other end then closes.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

EXIT_CODE = 130  # 128 + SIGINT, as shells have it
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
_AGAIN = "press Ctrl-C again to stop at once"
_SAME_SECONDS = 1.0  # `timeout` sends a signal to the process and to its group: that is one request
_PARENT = "FEDL2G_PARENT"  # the environment variable that names the pipe to the parent process


class _Interrupts:
    """The registered orderly ends (the innermost last), and the processes that must not outlive this one."""

    def __init__(self) -> None:
        self.listening = False  # a thread acknowledges the first Ctrl-C and carries out the second
        self.pressed = False
        self.acknowledged = threading.Event()
        self.handled = 0
        self.starting = False  # a child process is being started: do not raise before it is in `children`
        self.postponed = False
        self.is_child = False  # its parent leads: only the end of the parent counts as the second Ctrl-C
        self.ends: list[tuple[Callable[[], str], Callable[[], None]]] = []
        self.children: dict[subprocess.Popen[Any], tuple[signal.Signals | None, int]] = {}

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The handler of the signals, in the main thread."""
        self.handled += 1
        if self.handled > 1:
            if self.listening:
                return
            raise KeyboardInterrupt
        if self.listening:
            self.acknowledged.wait(_SAME_SECONDS)  # so that final messages follow the acknowledgement
        else:
            self.acknowledge()
        if self.ends:
            self.ends[-1][1]()
        elif self.starting:
            self.postponed = True
        elif self.listening and _imports(frame):
            self.end_at_once("interrupted")
        else:
            raise KeyboardInterrupt

    def acknowledge(self) -> None:
        self.pressed = True
        _say(f"{self.ends[-1][0]() if self.ends else 'stopping'}; {_AGAIN}")
        _leave_a_closed_terminal()
        self.acknowledged.set()
        for child, (first, _) in list(self.children.items()):
            if first is not None:
                child.send_signal(first)

    def end_at_once(self, said: str = "") -> None:
        if said:
            _say(said, end="\x1b[?25h" if sys.stderr.isatty() else "")  # a progress bar hides the cursor
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # other threads shall not report that their processes are gone
        for child in list(self.children):
            child.kill()
        os._exit(EXIT_CODE)

    def end_children(self) -> None:
        """End the processes that are left: the first Ctrl-C may come before whoever starts one knows of it."""
        for child in list(self.children):
            child.kill()
            child.wait()

    def listen(self, signals: socket.socket) -> None:
        """Read signals as they arrive, one byte each."""
        first: float | None = None
        while numbers := signals.recv(1):
            if numbers[0] not in SIGNALS:
                continue
            if first is None:
                first = time.monotonic()
                self.acknowledge()
            elif not self.is_child and (numbers[0] == signal.SIGINT or time.monotonic() - first > _SAME_SECONDS):
                self.end_at_once("stopped at once")


_interrupts = _Interrupts()


@contextmanager
def two_step_interrupts() -> Iterator[None]:
    """The command's handling of Ctrl-C: inside the block both steps take effect at once, whatever runs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    writing, reading = socket.socketpair()
    writing.setblocking(False)
    handlers = {number: signal.signal(number, _interrupts.handle) for number in _handled_signals()}
    before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    _interrupts.listening, _interrupts.pressed, _interrupts.handled = True, False, 0
    _interrupts.postponed = False
    _interrupts.acknowledged.clear()
    listener = threading.Thread(target=_interrupts.listen, args=(reading,), name="interrupts", daemon=True)
    listener.start()
    try:
        yield
    finally:
        if _interrupts.handled:  # the process is about to end; a second Ctrl-C must still work
            _interrupts.end_children()
        else:
            signal.set_wakeup_fd(before)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            _interrupts.listening = False
            writing.close()
            listener.join()
            reading.close()


@contextmanager
def orderly_end(message: Callable[[], str], stop: Callable[[], None]) -> Iterator[None]:
    """Inside the block the first Ctrl-C prints the message and calls `stop`; both must return at once."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield
        return
    _interrupts.ends.append((message, stop))
    before = {}
    if not _interrupts.listening and len(_interrupts.ends) == 1:  # a Python session
        _interrupts.pressed, _interrupts.handled = False, 0
        taken = [n for n in _handled_signals() if n == signal.SIGINT or signal.getsignal(n) == signal.SIG_DFL]
        before = {number: signal.signal(number, _interrupts.handle) for number in taken}
    try:
        yield
    finally:
        _interrupts.ends.pop()
        for number, handler in before.items():
            signal.signal(number, handler)


def interrupted() -> bool:
    """Whether Ctrl-C was pressed: nothing new should be started."""
    return _interrupts.pressed


def start_process(
    arguments: list[str],
    *,
    first: signal.Signals | None,
    blocked: Collection[signal.Signals] = (signal.SIGINT,),
    **options: Any,
) -> subprocess.Popen[Any]:
    """Start a process that ends with this one, if it calls `end_with_parent`; a second Ctrl-C kills it.

    The first Ctrl-C sends it the signal `first`, if any. The signals in `blocked`, which a terminal or a scheduler
    sends to all processes, do not reach it: only this process handles them.
    """
    reading, writing = os.pipe()
    options["env"] = {**options.get("env", os.environ), _PARENT: _pipe_identity(reading)}
    options["pass_fds"] = (*options.get("pass_fds", ()), reading)
    # The mask is inherited, so that the process is not interrupted from its first instruction on.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    _interrupts.starting = True
    try:
        process = subprocess.Popen(arguments, **options)
        _interrupts.children[process] = (first, writing)
    except BaseException:
        os.close(writing)
        raise
    finally:
        _interrupts.starting = False
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(reading)
    if _interrupts.postponed:
        process.kill()
        process.wait()
        process_ended(process)
        raise KeyboardInterrupt
    if _interrupts.pressed and first is not None:  # pressed while it was being started
        process.send_signal(first)
    return process


def process_ended(process: subprocess.Popen[Any]) -> None:
    """To be called when a process of `start_process` has ended and was waited for."""
    _, writing = _interrupts.children.pop(process, (None, None))
    if writing is not None:
        os.close(writing)


def end_with_parent() -> None:
    """End this process as soon as its parent is gone; does nothing unless `start_process` started it."""
    given = os.environ.pop(_PARENT, "")
    number = given.partition(":")[0]
    if not number.isdigit() or given != _pipe_identity(int(number)):  # not set, or inherited from a process in between
        return
    descriptor = int(number)
    _interrupts.is_child = True

    def wait() -> None:
        while os.read(descriptor, 1):
            pass
        _interrupts.end_at_once()

    # By the kernel where it can (Linux): a thread comes too late while the main one loads a library of gigabytes.
    with suppress(ImportError, AttributeError, OSError):
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_ASYNC)
    threading.Thread(target=wait, name="parent", daemon=True).start()


def _pipe_identity(descriptor: int) -> str:
    """A pipe's descriptor and inode, so that no other file is mistaken for it."""
    try:
        return f"{descriptor}:{os.fstat(descriptor).st_ino}"
    except OSError:
        return ""


def _imports(frame: FrameType | None) -> bool:
    """Whether a module is being imported: many libraries take any exception there for a missing dependency."""
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib."):
        frame = frame.f_back
    return frame is not None


def _handled_signals() -> list[signal.Signals]:
    """The signals that count as Ctrl-C; not SIGHUP under `nohup`."""
    return [n for n in SIGNALS if n == signal.SIGINT or signal.getsignal(n) is not signal.SIG_IGN]


def _leave_a_closed_terminal() -> None:
    """Send further output to nowhere if the terminal was closed: writing to it would raise errors."""
    for descriptor in (1, 2):
        try:
            os.write(descriptor, b"")
        except OSError as error:
            if error.errno == errno.EIO:
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _say(text: str, end: str = "") -> None:
    """Write to stderr, over a progress bar if there is one, without locks that the main thread may hold."""
    start = "\r\x1b[2K" if sys.stderr.isatty() else ""
    with suppress(OSError, ValueError):
        os.write(2, f"{start}fedl2g: {text}\n{end}".encode())
