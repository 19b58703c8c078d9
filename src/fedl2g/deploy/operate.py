"""`fedl2g deploy run`: starts a run at the coordinator's SuperLink, follows it, and reports how it ended."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from fedl2g.deploy.check_coordinator import EXPERIMENT, run_folder
from fedl2g.deploy.command import HOME, FlowerCommand, flower_command
from fedl2g.deploy.coordinator import read_coordinator
from fedl2g.deploy.outcome import read_outcome
from fedl2g.deploy.registered import KEYS_FILE
from fedl2g.errors import FedL2GError, RunError
from fedl2g.files import quoted, write_text
from fedl2g.interrupts import EXIT_CODE
from fedl2g.runs.deployed import how_to_continue
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.layout import is_run
from fedl2g.runs.progress import RoundDisplay

LOG = "log.txt"
_POLL_SECONDS = 0.5
_ASK_SECONDS = 60.0  # between two questions to Flower whether a silent run is still alive
_PROBLEMS = (" WARNING ", " ERROR ")


class NotFollowed(FedL2GError):
    """The operator pressed Ctrl-C; the run goes on without them."""

    exit_code = EXIT_CODE


@dataclass(frozen=True)
class Started:
    """A run at the SuperLink: Flower's id, and where its end is written."""

    path: Path  # the run directory
    flower_id: str
    outcome: Path
    experiment: Path

    def write(self, file: Path) -> None:
        about = {"run": self.flower_id, "outcome": str(self.outcome), "experiment": str(self.experiment)}
        write_text(file, json.dumps(about), durable=False)


def start_run(folder: Path, name: str, experiment: Path | None = None) -> Started:
    """Start a run, or continue it after its last round; the caller has checked the folder."""
    folder = folder.resolve()
    path = run_folder(folder, name)
    outcome = folder / HOME / f"{name}-{secrets.token_hex(4)}.json"
    file = (experiment or folder / EXPERIMENT).resolve()
    settings = {
        "experiment": str(file),
        "keys": str(folder / KEYS_FILE),
        "run": str(path),
        "outcome": str(outcome),
    }
    for needed in (path.parent, outcome.parent):
        needed.mkdir(parents=True, exist_ok=True)
    for old in (folder / HOME).glob(f"{name}-????????.json"):
        old.unlink(missing_ok=True)
    started = Started(path, flower_command(folder).start(settings, f"run-{name}"), outcome, file)
    started.write(_state_file(folder, name))
    return started


def running(folder: Path, name: str) -> Started | None:
    """The run of this name if it was started and has not ended; None otherwise."""
    folder = folder.resolve()
    path = run_folder(folder, name)
    try:
        found = json.loads(_state_file(folder, name).read_text(encoding="utf-8"))
        started = Started(path, str(found["run"]), Path(found["outcome"]), Path(found["experiment"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    if started.outcome.exists():
        return None
    if RunDirectory(started.path).running:
        return started
    try:
        return None if _is_over(flower_command(folder), started) else started
    except RunError:  # no SuperLink answers: whatever ran there has ended
        return None


def stop_run(folder: Path, name: str) -> str:
    """Stop a run at the SuperLink; it can be continued."""
    started = running(folder, name)
    if started is None:
        raise RunError(f"{run_folder(folder, name)}: is not running; `fedl2g deploy run {quoted(folder)}` starts it")
    flower_command(folder.resolve()).stop(started.flower_id)
    return f"stopped {started.path}; {how_to_continue(started.path)}"


def follow(folder: Path, started: Started, console: Console, *, title: str = "") -> RunDirectory:
    """Show a run's rounds and problems until it ends; raises the error with which it ends."""
    command = flower_command(folder.resolve())
    rounds = read_coordinator(started.experiment).experiment.rounds
    directory = RunDirectory(started.path)
    if is_run(directory.path):
        rounds = int(directory.about()["rounds"])
    which = f"{quoted(folder)} --name {started.path.name}"
    display = RoundDisplay(console, title or started.path.name, rounds)
    problems = _Tail(started.path / LOG)
    try:
        _watch(directory, started, command, display, lambda: problems.print(console))
    except KeyboardInterrupt:
        raise NotFollowed(
            f"{started.path}: goes on at the SuperLink; follow it again with `fedl2g deploy run {which}`, stop it with "
            f"`fedl2g deploy stop {which}`"
        ) from None
    finally:
        display.close()
    return RunDirectory.open(started.path)


def _watch(
    directory: RunDirectory,
    started: Started,
    command: FlowerCommand,
    display: RoundDisplay,
    print_problems: Callable[[], None],
) -> None:
    read, asked = -1, time.monotonic()
    while True:
        ended = started.outcome.exists()
        size = directory.metrics.stat().st_size if directory.metrics.exists() else 0
        if size != read:
            read, asked = size, time.monotonic()
            display.show(directory.history())
        print_problems()
        if ended:
            if (error := read_outcome(started.outcome)) is not None:
                raise error
            return
        if time.monotonic() - asked > _ASK_SECONDS:
            asked = time.monotonic()
            if not directory.running and _is_over(command, started) and not started.outcome.exists():
                raise RunError(
                    f"{started.path}: the process of the run ended without a message (killed, or out of memory); the "
                    f"last checkpoint is intact; look at the SuperLink's log, then {how_to_continue(started.path)}"
                )
        time.sleep(_POLL_SECONDS)


def _is_over(command: FlowerCommand, started: Started) -> bool:
    """Whether Flower says that the run is over; RunError if no SuperLink answers."""
    return command.status(started.flower_id).startswith("finished")


def _state_file(folder: Path, name: str) -> Path:
    return folder / HOME / f"started-{name}.json"


class _Tail:
    """Prints the new problems in a log; the display shows everything else."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = path.stat().st_size if path.exists() else 0

    def print(self, console: Console) -> None:
        """Print the problems since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                whole = file.read().rpartition(b"\n")[0]
        except OSError:
            return
        self._read += len(whole) + bool(whole)
        for line in whole.decode("utf-8", "replace").splitlines():
            if any(mark in line for mark in _PROBLEMS) and "the run stopped:" not in line:
                console.print(line, highlight=False, markup=False)
