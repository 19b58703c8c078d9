"""Progress display: a live bar on a terminal, periodic plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from fedl2g.federation import Federation, Observer
from fedl2g.round.record import MB, RoundRecord, epsilon_text, guarantee_of, selected_record
from fedl2g.runs.console import StatusLine, working

_WIDE = 110  # columns of a terminal that has room for long bars


class RoundProgress(Observer):
    """Shows the loading of the data, then round, accuracy, loss, megabytes and time left."""

    def __init__(self, console: Console, title: str = "") -> None:
        self.console = console
        self.title = title
        self._loading = ExitStack()
        self._tick: Callable[[str, int, int | None], None] | None = None
        self._bar: Progress | None = None
        self._bytes = 0
        self._line = StatusLine(console)

    def loading(self, step: str, done: int, total: int | None) -> None:
        """Progress callback for `fedl2g.setup.load_data`."""
        if self._tick is None:
            self._tick = self._loading.enter_context(working(self.console, "loading data"))
        self._tick(step, done, total)

    def on_start(self, federation: Federation) -> None:
        """Open the display, or update it after a restart of the round loop."""
        self._end_loading()
        self._bytes = sum(r.up_bytes + r.down_bytes for r in federation.history)
        if not self.console.is_terminal or self.console.quiet:
            return
        if self._bar is None:
            self._bar = progress_bar(self.console)
            self._bar.start()
            self._bar.add_task(
                self.title or federation.experiment.method.name, total=federation.experiment.rounds, status=""
            )
        self._show(federation)

    def on_round(self, federation: Federation, record: RoundRecord) -> None:
        """Show the completed round."""
        self._bytes += record.up_bytes + record.down_bytes
        self._show(federation)

    def on_end(self, federation: Federation) -> None:
        """Close the display."""
        self.close()

    def close(self) -> None:
        """Remove the display from the terminal."""
        self._end_loading()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _end_loading(self) -> None:
        self._loading.close()
        self._tick = None

    def _show(self, federation: Federation) -> None:
        if not federation.history or self.console.quiet:
            return
        text = f"{round_status(federation.history)}  {self._bytes / MB:.1f} MB".strip()
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=federation.round, status=text)
        else:
            name = self.title or federation.experiment.method.name
            self._line.show(f"{name}: round {federation.round}/{federation.experiment.rounds}  {text}")


def progress_bar(console: Console, *, times: bool = True) -> Progress:
    """Bars whose names, rounds and times are always whole; what does not fit is cut at the end of the status."""
    whole = [TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()] if times else []
    return Progress(
        TextColumn("[bold]{task.description}", table_column=Column(no_wrap=True, max_width=24, overflow="ellipsis")),
        BarColumn(bar_width=24 if console.width >= _WIDE else 8),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[status]}", table_column=Column(no_wrap=True, ratio=1, overflow="ellipsis")),
        *whole,
        console=console,
        transient=True,
        expand=True,
    )


def round_status(history: Sequence[RoundRecord]) -> str:
    """Accuracy, loss and spent privacy of the last round of a history, and the best accuracy; "" without rounds."""
    if not history:
        return ""
    best = selected_record(history)
    latest = history[-1].accuracy
    parts = [f"accuracy {latest.pooled:.4f}"] if latest is not None else []
    if best is not None and best.accuracy is not None and len(history) > 1:
        by = "" if best.accuracy.validation is None else f" (validation {best.accuracy.validation:.4f})"
        parts.append(f"best {best.accuracy.pooled:.4f}{by} (round {best.round})")
    if (loss := history[-1].loss) is not None:
        parts.append(f"loss {loss:.4f}")
    if (spent := history[-1].privacy.get("epsilon")) is not None:
        parts.append(f"epsilon {epsilon_text(spent, guarantee_of(history[-1].privacy))}")
    return "  ".join(parts)
