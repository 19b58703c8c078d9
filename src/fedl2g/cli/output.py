"""What commands write: results on stdout, progress on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fedl2g.runs.progress import RoundProgress


def print_line(text: str) -> None:
    """Print a line as it is: nothing in it is markup."""
    sys.stdout.write(text + "\n")


def print_json(value: object) -> None:
    """Print one JSON value on one line."""
    print_line(json.dumps(value))


def print_tables(*tables: RenderableType) -> None:
    """Print tables that fit the terminal; a pipe or a file has room for whole ones."""
    from rich.console import Console

    console = Console() if sys.stdout.isatty() else Console(width=140)
    for table in tables:
        console.print(table)


class Display:
    """What a command shows on stderr while it works; nothing when quiet. As a context, it cleans up at its end."""

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
        """The observer that shows the progress of one run, from the loading of its data on."""
        from fedl2g.runs.progress import RoundProgress

        self._followed.append(RoundProgress(self.console, title))
        return self._followed[-1]

    @contextmanager
    def working(self, what: str) -> Iterator[Callable[[str, int, int | None], None]]:
        """Show what goes on; yields the callback that work reports (what, done, total) to."""
        from fedl2g.runs.console import working

        with working(self.console, what) as tick:
            yield tick

    def say(self, text: str) -> None:
        """A line between the progress of two runs."""
        self.console.print(text, highlight=False, markup=False)
