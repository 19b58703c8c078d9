"""How long runs still take, from the rounds that were seen to end."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedl2g.report.collect import Run
from fedl2g.round.record import RoundRecord
from fedl2g.runs.plan import Plan

_ROUNDS = 20  # the last rounds that count: earlier ones may have been a warm-up, or on a busier machine


class Pace:
    """Remembers when the rounds of each run ended."""

    def __init__(self) -> None:
        self._seen: dict[Path, deque[tuple[int, float]]] = {}

    def see(self, runs: Sequence[Run]) -> None:
        """Note the last round of every run that is being worked on; forget runs that were interrupted."""
        for run in runs:
            path = run.directory.path
            if run.status != "running":
                if run.status == "unfinished":
                    self._seen.pop(path, None)
                continue
            if not run.history:
                continue
            try:
                ended = run.directory.metrics.stat().st_mtime
            except OSError:
                continue
            seen = self._seen.setdefault(path, deque(maxlen=_ROUNDS))
            done = run.history[-1].round
            if seen and done < seen[-1][0]:  # begun again
                seen.clear()
            if not seen or done > seen[-1][0]:
                seen.append((done, ended))

    def seconds_per_round(self, run: Run) -> float | None:
        """Seconds of a round; before two rounds were seen, the recorded seconds of its parts, one after another."""
        seen = self._seen.get(run.directory.path)
        if seen is not None and len(seen) > 1:
            return (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0])
        recorded = [_seconds(record) for record in run.history if record.round > 0][-_ROUNDS:]
        return statistics.fmean(recorded) if recorded else None

    def seconds_left(self, run: Run) -> float | None:
        """Seconds to the last round of a run that is being worked on; None if it is not, or nothing is known."""
        pace = self.seconds_per_round(run)
        if run.status != "running" or pace is None:
            return None
        return pace * max(int(run.settings["rounds"]) - run.history[-1].round, 0)

    def seconds_left_of(self, plan: Plan, runs: Mapping[Path, Run]) -> float | None:
        """Seconds to the end of all planned runs if as many run at a time as now; None if none is running.

        A run that has not begun is as fast as the others of its method, or as all of them.
        """
        planned = {plan.folder / one.run: one for one in plan.runs}
        begun = {path: runs[path] for path in planned if path in runs}
        running = sum(run.status == "running" for run in begun.values())
        paces: dict[str, list[float]] = {}
        for path, run in begun.items():
            if (pace := self.seconds_per_round(run)) is not None:
                paces.setdefault(planned[path].method, []).append(pace)
        if not running or not paces:
            return None
        usual = statistics.fmean(pace for found in paces.values() for pace in found)
        work = []
        for path, one in planned.items():
            done, pace = 0, None
            if path in begun:
                if begun[path].status not in ("running", "unfinished"):
                    continue
                done = begun[path].history[-1].round if begun[path].history else 0
                pace = self.seconds_per_round(begun[path])
            elif path.name in plan.failures:
                continue
            if pace is None:
                pace = statistics.fmean(paces.get(one.method, [usual]))
            work.append(pace * max(one.rounds - done, 0))
        # No run ends before its own rounds are over, however many run at a time.
        return max(sum(work) / running, *work)


def _seconds(record: RoundRecord) -> float:
    return record.client_seconds + record.server_seconds + record.evaluation_seconds
