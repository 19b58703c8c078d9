"""Keeps the page up to date: reads the runs again when their files have changed."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from fedl2g.errors import FedL2GError
from fedl2g.report.collect import without_repeated
from fedl2g.report.content import collect
from fedl2g.report.page import Extra, fragment, framed
from fedl2g.watch.found import Found, Watched
from fedl2g.watch.lines import client_section
from fedl2g.watch.log import log_section
from fedl2g.watch.now import now_section
from fedl2g.watch.pace import Pace
from fedl2g.watch.planned import plan_section

PERIOD = 1.0  # seconds between two looks at the files
REST = 3.0  # after a look that took long, wait this many times as long: the runs need the processor
_FIRST = ("how", "clients")  # what changes with every round comes before the conclusions


@dataclass(frozen=True)
class State:
    """What the page shows; the version changes with it."""

    version: int
    title: str
    fragment: dict[str, Any] = field(repr=False)
    runs: int
    problems: list[str]  # about what cannot be read

    def page(self, live: str = "") -> str:
        """The whole page; `live` is the path of its server-sent events."""
        return framed(self.title, self.fragment, live=live)


class Follower:
    """Looks at the files at most once a second, and only when asked."""

    def __init__(self, watched: Watched, *, period: float = PERIOD, rest: float = REST) -> None:
        self.watched = watched
        self.period = period
        self.rest = rest
        self._pace = Pace()
        self._lock = threading.Lock()
        self._stamp: object = None
        self._next = 0.0
        self._state: State | None = None

    def state(self) -> State:
        """The state of the runs now, or a moment ago."""
        with self._lock:
            started = time.monotonic()
            if self._state is not None and started < self._next:
                return self._state
            stamp = self.watched.stamp()
            if self._state is None or stamp != self._stamp:
                version = 1 if self._state is None else self._state.version + 1
                self._state = self._read(version)
                self._stamp = stamp
            took = time.monotonic() - started
            self._next = time.monotonic() + max(self.period, self.rest * took)
            return self._state

    def _read(self, version: int) -> State:
        found = self.watched.read()
        try:
            return self._shown(version, found)
        except (FedL2GError, OSError) as error:  # a run was removed between two reads
            return self._shown(version, Found([], [], [*found.problems, str(error)]))

    def _shown(self, version: int, found: Found) -> State:
        self._pace.see(found.runs)
        notes = [f"{problem}." for problem in found.problems]
        if not found.runs:
            notes.append("No runs yet; the page fills as soon as there is one.")
        title = f"Watching {self.watched.path}"
        content = collect(without_repeated(found.runs), title=title, tsne=False, notes=notes)
        extra = Extra(
            top=now_section(content, self._pace) + plan_section(found.plans, found.runs, self._pace),
            sections=(client_section(content),),
            bottom=log_section(content),
            first=_FIRST,
        )
        return State(version, title, fragment(content, extra=extra), len(found.runs), found.problems)
