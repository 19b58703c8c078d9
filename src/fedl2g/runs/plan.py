"""The planned runs of a batch, in a file in its folder, for pages that follow the batch."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fedl2g.display import visible
from fedl2g.errors import RunError
from fedl2g.files import reason_of
from fedl2g.folder import MIB, Folder
from fedl2g.runs.layout import ABOUT
from fedl2g.seals import read_sealed, write_sealed

if TYPE_CHECKING:
    from pydantic import ConfigDict, TypeAdapter

PLAN = "plan.json"
FAILURES = "failures.json"
_LIMIT = 16 * MIB
_REMEDY = "the command that wrote it writes it again"
_FAILURES = threading.Lock()  # runs of a batch may fail concurrently
_STRICT: ConfigDict = {"extra": "forbid", "strict": True}  # plans are read back from files


@dataclass(frozen=True)
class PlannedRun:
    """A planned run: its directory inside the folder, and its place in a table."""

    __pydantic_config__ = _STRICT

    run: str
    method: str
    seed: int
    rounds: int
    column: str = ""  # of a paper's table


@dataclass(frozen=True)
class Plan:
    """The planned runs of a folder, and the errors of those that failed, by the names of their directories."""

    folder: Path
    runs: tuple[PlannedRun, ...]
    failures: dict[str, str]


def write_plan(folder: Path, runs: Iterable[PlannedRun]) -> None:
    """Write the plan of a folder, in place of an earlier one."""
    try:
        Folder(folder).make()
        write_sealed(Folder(folder), PLAN, {"runs": [asdict(run) for run in runs]})
    except OSError as error:
        raise RunError(f"{folder / PLAN}: cannot be written ({reason_of(error)}); choose another --out") from error


def read_plan(folder: Path) -> Plan:
    """The plan of a folder."""
    path = folder / PLAN
    values = read_sealed(Folder(folder), PLAN, limit=_LIMIT, remedy=_REMEDY)
    try:
        runs = _reader().validate_json(json.dumps(values))["runs"]  # strict mode builds dataclasses from JSON alone
    except (ValueError, KeyError) as error:
        raise RunError(f"{path}: cannot be read (not a plan); {_REMEDY}") from error
    return Plan(folder, tuple(runs), read_failures(folder))


def find_plans(root: Path) -> list[Path]:
    """Every folder with a plan in or below a folder; runs are not searched."""
    found = []
    for folder, folders, files in os.walk(root):
        if PLAN in files:
            found.append(Path(folder))
        if ABOUT in files:
            folders.clear()
    return sorted(found)


def read_failures(folder: Path) -> dict[str, str]:
    """The errors of failed runs, by the names of their directories."""
    if Folder(folder).status(FAILURES) is None:
        return {}
    found = read_sealed(Folder(folder), FAILURES, limit=_LIMIT, remedy="remove it, and start the failed runs again")
    return {name: str(reason) for name, reason in found.items()}


def note_failure(folder: Path, name: str, reason: str | None) -> None:
    """Store the error of a failed run, or remove it with None."""
    with _FAILURES:
        known = read_failures(folder)
        if reason is None and name not in known:
            return
        known.pop(name, None)
        if reason is not None:
            known[name] = visible(reason)
        write_sealed(Folder(folder), FAILURES, known)


@cache
def _reader() -> TypeAdapter[dict[str, list[PlannedRun]]]:
    from pydantic import TypeAdapter

    return TypeAdapter(dict[str, list[PlannedRun]])
