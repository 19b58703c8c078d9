"""Output of commands: results on stdout, progress on stderr."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fedl2g.display import visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from fedl2g.runs.progress import RoundProgress


def print_line(text: str) -> None:
    """Print a line, or several, verbatim: without rich markup, and with control characters made visible."""
    sys.stdout.write(visible(text, keep="\n") + "\n")


class Printed(io.TextIOBase):
    """A text file whose lines are printed."""

    def write(self, text: str) -> int:
        print_line(text.removesuffix("\n"))
        return len(text)


def print_json(value: object) -> None:
    """Print one JSON value on one line."""
    print_line(json.dumps(value))


def print_tables(*tables: RenderableType) -> None:
    """Print tables fitted to the terminal or to $COLUMNS, or 140 columns wide to a pipe or file."""
    console = _console()
    for table in tables:
        console.print(table)


def print_tracked(names: str, runs: Sequence[Path]) -> None:
    """Print where the trackers wrote these runs and how to open that."""
    if names and runs:
        from fedl2g.runs.tracking import where_tracked

        for line in where_tracked(names, runs):
            print_line(line)


def screen_width() -> int:
    """How many characters fit on a line of what `print_tables` prints."""
    return _console().width


def _console() -> Console:
    from fedl2g.runs.console import PlainConsole

    return PlainConsole() if sys.stdout.isatty() or "COLUMNS" in os.environ else PlainConsole(width=140)


class Display:
    """Progress of a command on stderr, nothing if quiet; a context manager that closes all progress displays."""

    def __init__(self, quiet: bool) -> None:
        from fedl2g.runs.console import progress_console

        self.console = progress_console(quiet)
        self._followed: list[RoundProgress] = []

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        for progress in self._followed:
            progress.close()

    def follow(self, title: str = "") -> RoundProgress:
        """An observer that shows the progress of one run, including the loading of its data."""
        from fedl2g.runs.progress import RoundProgress

        progress = RoundProgress(self.console, title)
        self._followed.append(progress)
        return progress

    @contextmanager
    def working(self, what: str) -> Iterator[Callable[[str, int, int | None], None]]:
        """Show a status while the block runs; yields a progress callback (step, done, total)."""
        from fedl2g.runs.console import working

        with working(self.console, what) as tick:
            yield tick

    def print(self, text: str) -> None:
        """Print a line between the progress of two runs."""
        self.console.print(text, highlight=False, markup=False)
