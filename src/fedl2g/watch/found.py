"""The runs in a folder while others write to it: what cannot be read is reported, and is never an error."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path

from fedl2g.errors import FedL2GError
from fedl2g.report.collect import Run, in_order, read_runs
from fedl2g.runs.directory import RunDirectory, find_runs
from fedl2g.runs.layout import ABOUT, EXPERIMENT, METRICS, RESULT
from fedl2g.runs.plan import FAILURES, PLAN, Plan, find_plans, read_plan

LOG = "log.txt"  # of the coordinator of a deployment
_CHANGING = (METRICS, ABOUT, EXPERIMENT, RESULT, LOG)


@dataclass(frozen=True)
class Found:
    """The runs that can be read, in the order of a report, what is planned, and sentences about what is unreadable."""

    runs: list[Run] = field(repr=False)
    plans: list[Plan] = field(repr=False)
    problems: list[str]


class Watched:
    """A run, or a folder of runs, that may change, vanish and come back. No code that a run names is imported
    unless the user trusts it.
    """

    def __init__(self, path: Path, *, trust: bool = False) -> None:
        self.path = path
        self.trust = trust
        self._known: dict[Path, tuple[Hashable, Run]] = {}

    def stamp(self) -> Hashable:
        """Equal as long as nothing changed: the sizes and times of the files, and who is being worked on."""
        comparison = _file_stamp(self.path / "comparison.json")
        plans = tuple(
            (str(folder), *(_file_stamp(folder / name) for name in (PLAN, FAILURES)))
            for folder in find_plans(self.path)
        )
        return self.path.is_dir(), comparison, plans, tuple(map(_run_stamp, find_runs(self.path)))

    def read(self) -> Found:
        """Read what changed; a run that is damaged, half written or not trusted is a sentence."""
        if not self.path.is_dir():
            return Found([], [], [f"{self.path}: the folder no longer exists"])
        problems = []
        plans = []
        for folder in find_plans(self.path):
            try:
                plans.append(read_plan(folder))
            except FedL2GError as error:
                problems.append(str(error))
        readable = []
        for directory in in_order(self.path, find_runs(self.path)):
            try:
                readable.append(self._run(directory))
            except FedL2GError as error:
                problems.append(str(error))
        return Found(readable, plans, problems)

    def _run(self, directory: RunDirectory) -> Run:
        """The run as it was read before, unless its files have changed: a table of a paper has hundreds of runs."""
        stamp = _run_stamp(directory)
        before, run = self._known.get(directory.path, (None, None))
        if run is None or stamp != before:
            (found,) = read_runs([directory.path], trust=self.trust)
            if run is None:
                # Files that never change and are read later: if they are damaged, only this run is left out.
                found.directory.environment()
                if not found.directory.deployed:
                    found.directory.partition()
            self._known[directory.path] = stamp, found
            return found
        return run


def _run_stamp(run: RunDirectory) -> Hashable:
    files = tuple(_file_stamp(run.path / name) for name in _CHANGING)
    finished = run.folder.status(RESULT) is not None
    return str(run.path), files, not finished and run.running


def _file_stamp(path: Path) -> Hashable:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
