"""The console for progress, and the display of work before the first round (imports no torch)."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import IO, Any, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from fedl2g.display import visible

PLAIN_EVERY_SECONDS = 10.0
_NOTEBOOK_EVERY_SECONDS = 0.5


class PlainConsole(Console):
    """A console that makes control characters in printed text visible, but keeps those of its own displays."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text
            if segment.control or text.isprintable():
                yield segment
            else:
                yield Segment(visible(text, keep="\n"), segment.style)


def progress_console(quiet: bool = False) -> Console:
    """A console on stderr; lines are not wrapped when stderr is not a terminal."""
    console = PlainConsole(stderr=True, quiet=quiet, width=None if sys.stderr.isatty() else 200)
    if console.is_terminal and not console.is_jupyter:
        console.file = cast("IO[str]", _Terminal(sys.stderr))
    return console


class _Terminal(io.TextIOBase):
    """A terminal that may be closed at any time: the run continues, and ends in order, without it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


class StatusLine:
    """Progress where there is no terminal: a line from time to time, or in a notebook one line that changes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = time.monotonic()
        self._shown: Any = None  # the handle of IPython's display
        self._latest = ""

    def show(self, text: str) -> None:
        """Show this text, unless the one before is too recent."""
        self._latest = text
        every = _NOTEBOOK_EVERY_SECONDS if self._console.is_jupyter else PLAIN_EVERY_SECONDS
        if self._console.quiet or time.monotonic() - self._last < every:
            return
        self._last = time.monotonic()
        if not self._console.is_jupyter:
            self._console.print(text, highlight=False, markup=False)
        elif self._shown is None:
            from IPython.display import display

            self._shown = display({"text/plain": text}, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._shown.update({"text/plain": text}, raw=True)

    def end(self, text: str = "") -> None:
        """Leave this text in a notebook, or the latest: what is shown there stays in the document."""
        if self._shown is not None:
            self._shown.update({"text/plain": text or self._latest}, raw=True)


@contextmanager
def working(console: Console, what: str) -> Iterator[Callable[[str, int, int | None], None]]:
    """Show a status while the block runs; yields a progress callback (step, done, total)."""
    if not console.is_terminal or console.quiet:
        line = StatusLine(console)
        yield lambda step, done, total: line.show(_amount(step, done, total))
        return
    with console.status(what) as status:
        yield lambda step, done, total: status.update(_amount(step, done, total))


def _amount(what: str, done: int, total: int | None) -> str:
    return f"{what}: {done:,}" + (f" of {total:,} ({done / total:.0%})" if total else "")
