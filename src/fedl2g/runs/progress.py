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


class RoundDisplay:
    """The rounds of one run as they are done: a bar on a terminal, a line from time to time elsewhere."""

    def __init__(self, console: Console, title: str, rounds: int) -> None:
        self.console = console
        self.title = title
        self.rounds = rounds
        self._bytes = 0
        self._counted = 0  # records
        self._line = StatusLine(console)
        self._bar: Progress | None = None
        if console.is_terminal and not console.quiet:
            self._bar = progress_bar(console)
            self._bar.start()
            self._bar.add_task(title, total=rounds, status="")

    def show(self, history: Sequence[RoundRecord]) -> None:
        """Show the last round of a history."""
        if self._counted > len(history):  # the run fell back to a checkpoint
            self._bytes = self._counted = 0
        self._bytes += sum(record.up_bytes + record.down_bytes for record in history[self._counted :])
        self._counted = len(history)
        if not history or self.console.quiet:
            return
        text, done = f"{round_status(history)}  {self._bytes / MB:.1f} MB".strip(), history[-1].round
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, status=text)
        else:
            self._line.show(f"{self.title}: round {done}/{self.rounds}  {text}")

    def close(self) -> None:
        """Remove the display from the terminal."""
        self._line.end()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class RoundProgress(Observer):
    """Shows the loading of the data, then round, accuracy, loss, megabytes and time left."""

    def __init__(self, console: Console, title: str = "") -> None:
        self.console = console
        self.title = title
        self._loading = ExitStack()
        self._tick: Callable[[str, int, int | None], None] | None = None
        self._rounds: RoundDisplay | None = None

    def loading(self, step: str, done: int, total: int | None) -> None:
        """Progress callback for `fedl2g.setup.load_data`."""
        if self._tick is None:
            self._tick = self._loading.enter_context(working(self.console, "loading data"))
        self._tick(step, done, total)

    def on_start(self, federation: Federation) -> None:
        """Open the display, or update it after a restart of the round loop."""
        self._end_loading()
        if self._rounds is None:
            experiment = federation.experiment
            self._rounds = RoundDisplay(self.console, self.title or experiment.method.name, experiment.rounds)
        self._rounds.show(federation.history)

    def on_round(self, federation: Federation, record: RoundRecord) -> None:
        """Show the completed round."""
        if self._rounds is not None:
            self._rounds.show(federation.history)

    def on_end(self, federation: Federation) -> None:
        """Close the display."""
        self.close()

    def close(self) -> None:
        """Remove the display from the terminal."""
        self._end_loading()
        if self._rounds is not None:
            self._rounds.close()
            self._rounds = None

    def _end_loading(self) -> None:
        self._loading.close()
        self._tick = None


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
