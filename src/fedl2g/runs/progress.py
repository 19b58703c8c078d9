"""Progress for people: a live line on a terminal, a plain line now and then elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedl2g.round.record import MB, RoundRecord, best_record

if TYPE_CHECKING:
    from fedl2g.federation import Federation

PLAIN_EVERY_SECONDS = 10.0


def progress_console(quiet: bool = False) -> Console:
    """Where progress goes: stderr, without breaking lines where there is no terminal to fit them to."""
    return Console(stderr=True, quiet=quiet, width=None if sys.stderr.isatty() else 200)


class RoundProgress:
    """Shows round, accuracy, loss, megabytes and time left. An observer of a federation."""

    def __init__(self, console: Console, title: str = "") -> None:
        self.console = console
        self.title = title
        self._bar: Progress | None = None
        self._bytes = 0
        self._last_line = time.monotonic()

    def on_start(self, federation: Federation) -> None:
        """Open the display, or continue it after an interruption."""
        self._bytes = sum(r.up_bytes + r.down_bytes for r in federation.history)
        if not self.console.is_terminal:
            return
        if self._bar is None:
            self._bar = Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[status]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=self.console,
                transient=True,
            )
            self._bar.start()
            self._bar.add_task(
                self.title or federation.experiment.method.name, total=federation.experiment.rounds, status=""
            )
        self._show(federation)

    def on_round(self, federation: Federation, record: RoundRecord) -> None:
        """Show the round that is over."""
        self._bytes += record.up_bytes + record.down_bytes
        self._show(federation)

    def on_end(self, federation: Federation) -> None:
        """Close the display."""
        self.close()

    def close(self) -> None:
        """Take the display off the terminal."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _show(self, federation: Federation) -> None:
        if not federation.history:
            return
        text = self._status(federation)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=federation.round, status=text)
        elif time.monotonic() - self._last_line >= PLAIN_EVERY_SECONDS:
            self._last_line = time.monotonic()
            name = self.title or federation.experiment.method.name
            self.console.print(
                f"{name}: round {federation.round}/{federation.experiment.rounds}  {text}", highlight=False
            )

    def _status(self, federation: Federation) -> str:
        best = best_record(federation.history)
        latest = federation.history[-1].accuracy
        parts = [f"accuracy {latest.pooled:.4f}"] if latest is not None else []
        if best is not None and best.accuracy is not None:
            parts.append(f"best {best.accuracy.pooled:.4f} (round {best.round})")
        if (loss := federation.history[-1].loss) is not None:
            parts.append(f"loss {loss:.4f}")
        if (spent := federation.history[-1].privacy.get("epsilon")) is not None:
            parts.append(f"epsilon {spent:.3g}")
        parts.append(f"{self._bytes / MB:.1f} MB")
        return "  ".join(parts)


@contextmanager
def working(console: Console, what: str) -> Iterator[Callable[[str, int, int | None], None]]:
    """Say what is going on while it goes on; yields a callback for (what, done, total) as datasets report it."""
    if not console.is_terminal:
        shown = time.monotonic()

        def plain(step: str, done: int, total: int | None) -> None:
            nonlocal shown
            if time.monotonic() - shown >= PLAIN_EVERY_SECONDS:
                shown = time.monotonic()
                console.print(_amount(step, done, total), highlight=False)

        yield plain
        return
    with console.status(what) as status:
        yield lambda step, done, total: status.update(_amount(step, done, total))


def _amount(what: str, done: int, total: int | None) -> str:
    return f"{what}: {done:,}" + (f" of {total:,} ({done / total:.0%})" if total else "")
