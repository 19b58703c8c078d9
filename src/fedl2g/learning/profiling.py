"""Where a round's time went: laps of a stopwatch in the training loop, and what they add up to (no torch here)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

DATA, GRADIENT, OPTIMISER, GUIDING = "data", "forward and backward", "optimiser", "guiding step"
OTHER, EVALUATION, AGGREGATION, WAITING = "other work of clients", "evaluation", "aggregation", "waiting"
PARTS = (DATA, GRADIENT, OPTIMISER, GUIDING, OTHER, EVALUATION, AGGREGATION, WAITING)


class Stopwatch:
    """Adds up the time between laps by name; while it is off, a lap costs one call that does nothing."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = 0.0
        self._finish: Callable[[], None] | None = None
        self.off()

    def off(self) -> None:
        """Stop measuring."""
        self.start: Callable[[], None] = _nothing
        self.lap: Callable[[str], None] = _nothing_named
        self.seconds = {}

    def on(self, finish: Callable[[], None] | None = None) -> None:
        """Measure from now on; `finish` waits for the device, whose work would else fall into a later lap."""
        self._finish = finish
        self.start, self.lap = self._start, self._lap
        self.seconds = {}

    def take(self) -> dict[str, float]:
        """What was measured since the last call."""
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


def _nothing() -> None:
    return None


def _nothing_named(name: str) -> None:
    return None


watch = Stopwatch()  # of this process: its clients train one after the other


def split_round(
    clients: Iterable[tuple[float, Mapping[str, float]]],
    *,
    wall: float,
    server: float,
    evaluation: float,
    lanes: int,
) -> dict[str, float]:
    """The parts of a round in seconds of a processor: together, the time of the round on each of the lanes.

    `clients` gives each participant's seconds of training and its laps, `wall` the time of the round, `lanes` how many
    clients can train at a time: what the lanes did not use is waiting. A lap of OTHER work comes on top of the seconds
    (loading a client, packing its reply); all others lie within.
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
    parts[WAITING] = max(0.0, lanes * wall - busy)  # below 0 where the server checks one reply while others train
    parts[AGGREGATION] = server
    parts[EVALUATION] = lanes * evaluation
    return parts


def total_profile(rounds: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The parts of several rounds together."""
    total: dict[str, float] = {}
    for parts in rounds:
        for name, seconds in parts.items():
            total[name] = total.get(name, 0.0) + seconds
    return total
