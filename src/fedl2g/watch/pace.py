"""How long runs still take, from the rounds that were seen to end."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedl2g.report.collect import Run
from fedl2g.round.record import RoundRecord

_ROUNDS = 20  # the last rounds tell the pace: earlier ones may have been a warm-up, or on a busier machine


class Pace:
    """Remembers when the rounds of each run ended."""

    def __init__(self) -> None:
        self._seen: dict[Path, deque[tuple[int, float]]] = {}

    def see(self, runs: Sequence[Run]) -> None:
        """Note the last round of every run; a run that is not being worked on starts anew."""
        for run in runs:
            path = run.directory.path
            if run.status != "running" or not run.history:
                self._seen.pop(path, None)
                continue
            try:
                ended = run.directory.metrics.stat().st_mtime
            except OSError:
                continue
            seen = self._seen.setdefault(path, deque(maxlen=_ROUNDS))
            done = run.history[-1].round
            if seen and done < seen[-1][0]:  # continued from an earlier checkpoint
                seen.clear()
            if not seen or done > seen[-1][0]:
                seen.append((done, ended))

    def seconds_per_round(self, run: Run) -> float | None:
        """Seconds of a round; before two rounds were seen, the recorded seconds of its parts, one after another."""
        seen = self._seen.get(run.directory.path)
        if seen is not None and len(seen) > 1:
            return (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0])
        recorded = [_seconds(record) for record in run.history if record.round > 0][-_ROUNDS:]
        return sum(recorded) / len(recorded) if recorded else None

    def seconds_left(self, run: Run) -> float | None:
        """Seconds to the last round of a run that is being worked on; None if it is not, or nothing is known."""
        pace = self.seconds_per_round(run)
        if run.status != "running" or pace is None:
            return None
        return pace * (rounds_of(run.settings) - run.history[-1].round)


def rounds_of(settings: Mapping[str, object]) -> int:
    """The number of rounds that a run shall have."""
    return int(str(settings["rounds"]))


def _seconds(record: RoundRecord) -> float:
    return record.client_seconds + record.server_seconds + record.evaluation_seconds
