"""The console for progress, and the display of work before the first round (imports no torch)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

PLAIN_EVERY_SECONDS = 10.0


def progress_console(quiet: bool = False) -> Console:
    """A console on stderr; lines are not wrapped when stderr is not a terminal."""
    return Console(stderr=True, quiet=quiet, width=None if sys.stderr.isatty() else 200)


@contextmanager
def working(console: Console, what: str) -> Iterator[Callable[[str, int, int | None], None]]:
    """Show a status while the block runs; yields a progress callback (step, done, total)."""
    if not console.is_terminal or console.quiet:
        shown = time.monotonic()

        def plain(step: str, done: int, total: int | None) -> None:
            nonlocal shown
            if time.monotonic() - shown >= PLAIN_EVERY_SECONDS:
                shown = time.monotonic()
                console.print(_amount(step, done, total), highlight=False, markup=False)

        yield plain
        return
    with console.status(what) as status:
        yield lambda step, done, total: status.update(_amount(step, done, total))


def _amount(what: str, done: int, total: int | None) -> str:
    return f"{what}: {done:,}" + (f" of {total:,} ({done / total:.0%})" if total else "")
