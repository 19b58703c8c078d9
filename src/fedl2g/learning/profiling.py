"""Profiling of a round: a stopwatch in the training loop, and the breakdown of its laps (no torch here)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

DATA, GRADIENT, OPTIMIZER, GUIDING = "data", "forward and backward", "optimizer", "guiding step"
OTHER, EVALUATION, AGGREGATION, WAITING = "other work of clients", "evaluation", "aggregation", "waiting"
PARTS = (DATA, GRADIENT, OPTIMIZER, GUIDING, OTHER, EVALUATION, AGGREGATION, WAITING)


class Stopwatch:
    """Accumulates the time between laps by name; while it is off, a lap is a no-op call."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = 0.0
        self._finish: Callable[[], None] | None = None
        self.off()

    def off(self) -> None:
        """Stop measuring."""
        self.start: Callable[[], None] = _no_start
        self.lap: Callable[[str], None] = _no_lap
        self.seconds = {}

    def on(self, finish: Callable[[], None] | None = None) -> None:
        """Start measuring; `finish` synchronizes the device, whose work would otherwise count in a later lap."""
        self._finish = finish
        self.start, self.lap = self._start, self._lap
        self.seconds = {}

    def take(self) -> dict[str, float]:
        """Return and reset the seconds measured so far."""
        taken, self.seconds = self.seconds, {}
        return taken

    def _start(self) -> None:
        self._last = time.perf_counter()

    def _lap(self, name: str) -> None:
        if self._finish is not None:
            self._finish()
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now


def _no_start() -> None:
    return None


def _no_lap(name: str) -> None:
    return None


watch = Stopwatch()  # one per process: its clients train one after the other


def split_round(
    clients: Iterable[tuple[float, Mapping[str, float]]],
    *,
    wall: float,
    server: float,
    evaluation: float,
    lanes: int,
) -> dict[str, float]:
    """Break a round down into processor seconds, which add up to `lanes * wall`.

    `clients` gives each participant's training seconds and laps, `wall` the duration of the round, `lanes` how many
    clients can train concurrently; idle lane time counts as waiting. A lap of OTHER work (loading a client, packing its
    reply) comes on top of the training seconds; all other laps are part of them.
    """
    parts = dict.fromkeys(PARTS, 0.0)
    busy = server + lanes * evaluation
    for seconds, laps in clients:
        outside = laps.get(OTHER, 0.0)
        busy += seconds + outside
        parts[OTHER] += seconds + outside - sum(value for name, value in laps.items() if name != OTHER)
        for name, value in laps.items():
            if name != OTHER:
                parts[name] = parts.get(name, 0.0) + value
    parts[WAITING] = max(0.0, lanes * wall - busy)  # negative when the server checks a reply while others train
    parts[AGGREGATION] = server
    parts[EVALUATION] = lanes * evaluation
    return parts


def total_profile(rounds: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The summed breakdown of several rounds."""
    total: dict[str, float] = {}
    for parts in rounds:
        for name, seconds in parts.items():
            total[name] = total.get(name, 0.0) + seconds
    return total
