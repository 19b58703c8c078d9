"""Checkpoints: a folder per kept round, written atomically; only this module knows its contents.

A checkpoint holds `server.safetensors`, a state file for each client that has trained (engines/states.py names them),
and `state.json` with the history, the experiment's fingerprint and a digest of every file. Its folder `best` holds the
same of the best round so far, except that its history is the record of that round alone (runs/best.py writes it).
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors
import safetensors.torch
from torch import Tensor

from fedl2g.engines.states import LARGEST_STATE, State, client_file, write_state
from fedl2g.errors import PayloadError, RunError
from fedl2g.files import quoted, reason_of
from fedl2g.folder import MIB, Folder
from fedl2g.seals import digest

if TYPE_CHECKING:
    from fedl2g.experiment import Experiment
    from fedl2g.federation import Federation

_FORMAT = 2
_KEPT = 2  # a fallback in case the newest is damaged by a failing disk
_SERVER, _STATE, _BEST = "server.safetensors", "state.json", "best"
SERVER_PREFIX = "server."  # of the names of the server half's tensors
_NAME = re.compile(r"round-([0-9]{6,15})")
_STATE_LIMIT = 512 * MIB  # the history of all rounds
_log = logging.getLogger(__name__)


class Damaged(RunError):
    """A checkpoint whose contents have changed since it was written."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: the checkpoint is damaged ({what}); restore it from a copy, or delete it")
        self.what = what


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint. Everything read from it is verified against its digest; `Damaged` is raised on a mismatch."""

    path: Path

    @property
    def folder(self) -> Folder:
        """Its folder, opened from the run directory, so that no link on the path to it is followed."""
        up = 2 if self.path.name == _BEST else 1
        return Folder(self.path.parents[up]) / "/".join(self.path.parts[-up - 1 :])

    @property
    def round(self) -> int:
        """The last round it includes."""
        if self.path.name == _BEST:
            return int(self.state["round"])
        match = _NAME.fullmatch(self.path.name)
        if match is None:
            raise RunError(f"{self.path}: not a checkpoint; expected a folder named round-NNNNNN")
        return int(match[1])

    @property
    def best(self) -> Checkpoint | None:
        """The models of the best round up to this one; None if they were not kept."""
        return Checkpoint(self.path / _BEST) if self.folder.is_folder(_BEST) else None

    def belongs_to(self, experiment: Experiment) -> bool:
        """Whether the experiment wrote it, perhaps before it was given more rounds."""
        rounds: int = self.state.get("rounds", experiment.rounds)
        return bool(experiment.fingerprint_with(rounds) == self.state["fingerprint"])

    @cached_property
    def state(self) -> dict[str, Any]:
        """The contents of state.json: `fingerprint`, `round`, `files` (with digests) and the federation's `values`."""
        try:
            sealed = json.loads(self.folder.read(_STATE, _STATE_LIMIT))
            state: dict[str, Any] = sealed["state"]
            if sealed["digest"] != _seal(state):
                raise Damaged(self.path, f"{_STATE} does not match its digest")
            if state["format"] != _FORMAT:
                raise Damaged(self.path, f"unknown format {state['format']!r}")
            complete = isinstance(state["files"], dict) and isinstance(state["fingerprint"], str)
            complete &= isinstance(state["values"], dict) and isinstance(state["values"].get("history"), list)
            complete &= isinstance(state["round"], int) and isinstance(state.get("rounds", 1), int)
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise Damaged(self.path, f"{_STATE} cannot be read: {error!r}") from error
        if not complete:
            raise Damaged(self.path, f"{_STATE} has no history or no digests")
        return state

    def verify(self) -> None:
        """Read every file and compare it with its digest, those of the best round too."""
        folder = self.folder
        try:
            found = {name: _digest(folder, name) for name in folder.names() if name not in (_STATE, _BEST)}
        except OSError as error:
            raise Damaged(self.path, f"cannot be read: {reason_of(error)}") from error
        files = self.state["files"]
        if wrong := sorted(name for name in files.keys() | found.keys() if files.get(name) != found.get(name)):
            raise Damaged(self.path, f"{wrong[0]} is missing or does not match its digest")
        if (best := self.best) is not None:
            best.verify()

    def tensors(self) -> State:
        """The federation's tensors, of its server and its policies."""
        return self._read(self.path / _SERVER)

    def server(self) -> State:
        """The tensors of the method's server half."""
        found = self.tensors().items()
        return {name.removeprefix(SERVER_PREFIX): tensor for name, tensor in found if name.startswith(SERVER_PREFIX)}

    def client(self, client: int) -> State | None:
        """The state of one client; None if it had not trained."""
        path = client_file(self.path, client)
        return self._read(path) if path.name in self.state["files"] else None

    def _read(self, path: Path) -> State:
        try:
            content = self.folder.read(path.name, LARGEST_STATE)
            if digest(content) != self.state["files"].get(path.name):
                raise Damaged(self.path, f"{path.name} does not match its digest")
            return safetensors.torch.load(content)
        except (OSError, KeyError, safetensors.SafetensorError) as error:  # KeyError: a type that torch does not have
            raise Damaged(self.path, f"{path.name} cannot be read: {reason_of(error)}") from error


def checkpoint_path(folder: Path, round: int) -> Path:
    """The path of the checkpoint of a round."""
    return folder / f"round-{round:06d}"


def checkpoints(folder: Path) -> list[Checkpoint]:
    """The checkpoints in a folder, ascending by round, not yet read."""
    names = (Folder(folder.parent) / folder.name).names()
    found = [Checkpoint(folder / name) for name in names if _NAME.fullmatch(name)]
    return sorted(found, key=lambda checkpoint: checkpoint.round)


def newest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint in a folder, or None."""
    found = checkpoints(folder)
    return found[-1] if found else None


def write_checkpoint(folder: Path, federation: Federation, best: Callable[[Path], None] | None = None) -> Path:
    """Write a checkpoint of the federation between two rounds; `best` fills its folder of the best round."""
    path = checkpoint_path(folder, federation.round)
    run, on_disk = Folder(folder.parent), set[str]()
    with writing(path, folder.parent):
        run.make(folder.name)
        with run.replacing(f"{folder.name}/{path.name}", on_disk=on_disk) as partial:
            partial.mkdir()
            federation.engine.save(partial)
            known = unchanged(partial, newest(folder))
            on_disk.update(known)
            tensors, values = federation.state_dict()
            write_tensors(partial, tensors)
            seal(partial, federation.experiment, federation.round, values, known)
            if best is not None:
                best(partial / _BEST)
    for old in checkpoints(folder)[:-_KEPT]:
        (run / folder.name).remove(old.path.name)
    return path


@contextmanager
def writing(path: Path, run: Path, what: str = "the checkpoint") -> Iterator[None]:
    """Turn disk errors while a checkpoint, or a part of the next one, is written into one sentence."""
    try:
        yield
    except (OSError, safetensors.SafetensorError, RunError) as error:
        raise RunError(
            f"{path}: {what} cannot be written ({reason_of(error)}); earlier checkpoints are intact; make "
            f"room, then continue with `fedl2g resume {quoted(run)}`"
        ) from error


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the federation's tensors to a checkpoint that is being made."""
    write_state(path / _SERVER, {name: tensor.contiguous().clone() for name, tensor in tensors.items()})


def seal(path: Path, experiment: Experiment, round: int, values: dict[str, Any], known: Mapping[str, str]) -> None:
    """Write the state of a checkpoint that is being made, with a digest of every file, unless it is known already."""
    state = {
        "format": _FORMAT,
        "fingerprint": experiment.fingerprint,
        "rounds": experiment.rounds,
        "round": round,
        "files": {
            file.name: known.get(file.name) or _digest(Folder(path), file.name)
            for file in sorted(path.iterdir())
            if file.name not in (_STATE, _BEST)
        },
        "values": values,
    }
    sealed = {"state": state, "digest": _seal(state)}
    (path / _STATE).write_text(json.dumps(sealed), encoding="utf-8")


def restore_checkpoint(folder: Path, federation: Federation) -> int:
    """Restore the newest intact checkpoint, or the start if there is none; returns the round."""
    (Folder(folder.parent) / folder.name).remove_leftovers()
    found = checkpoints(folder)
    for checkpoint in reversed(found):
        try:
            _restore(checkpoint, federation)
        except Damaged as error:
            _log.warning("%s: the checkpoint is damaged (%s); trying the previous one", checkpoint.path, error.what)
        else:
            return federation.round
    if found:
        raise RunError(
            f"{folder}: every checkpoint is damaged; nothing was changed; restore the folder from a copy, or delete it "
            "to restart the run from round 0"
        )
    federation.engine.restore(None)
    federation.start_over()
    return 0


def _restore(checkpoint: Checkpoint, federation: Federation) -> None:
    """Restore the server and the clients from one checkpoint."""
    best = checkpoint.best
    if not all(one.belongs_to(federation.experiment) for one in (checkpoint, *([best] if best else []))):
        raise RunError(
            f"{checkpoint.path}: belongs to another experiment; a run can only continue from its own checkpoints"
        )
    checkpoint.verify()
    try:
        federation.load_state_dict(checkpoint.tensors(), checkpoint.state["values"])
        federation.engine.restore(checkpoint.path)
    except (OSError, ValueError, LookupError, TypeError, RuntimeError, AttributeError, ArithmeticError) as error:
        raise Damaged(checkpoint.path, f"does not fit this experiment: {error!r}") from error
    except (safetensors.SafetensorError, PayloadError) as error:
        raise Damaged(checkpoint.path, str(error)) from error


def unchanged(partial: Path, before: Checkpoint | None) -> dict[str, str]:
    """The files hard-linked from the previous checkpoint (clients that have not trained since), with their digests.

    They are already synced to disk. Their old digests are kept: a new one would hide later corruption of the disk.
    """
    try:
        files = before.state["files"] if before is not None else {}
        return {
            file.name: files[file.name]
            for file in partial.iterdir()
            if before is not None and file.name in files and _same(file, before.path / file.name)
        }
    except (OSError, Damaged):
        return {}


def _same(one: Path, other: Path) -> bool:
    return other.exists() and one.samefile(other)


def _seal(state: dict[str, Any]) -> str:
    """A digest of the state itself, which detects changes in the history."""
    return digest(json.dumps(state).encode())


def _digest(folder: Folder, name: str) -> str:
    with folder.opened(name, LARGEST_STATE) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # typeshed asks for readinto
