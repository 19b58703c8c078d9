"""Checkpoints: a folder per kept round, written aside and renamed, so that it exists whole or not at all.

A checkpoint holds `server.safetensors`, a `client-NNNNNN.safetensors` for each client that has trained, and
`state.json` with the history, the experiment's fingerprint and a digest of every file.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch

from fedl2g.errors import FedL2GError, PayloadError, RunError
from fedl2g.federation import Federation

_FORMAT = 1
_KEPT = 2  # the newest may be damaged by a failing disk: the one before it still stands
_log = logging.getLogger(__name__)


def write_checkpoint(folder: Path, federation: Federation) -> Path:
    """Save the federation as it stands between two rounds."""
    partial, final = folder / ".partial", folder / f"round-{federation.round:06d}"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        federation.engine.save(partial)
        known = _unchanged(partial, folder)
        tensors, values = federation.state_dict()
        safetensors.torch.save_file(
            {k: t.contiguous().clone() for k, t in tensors.items()}, partial / "server.safetensors"
        )
        state = {
            "format": _FORMAT,
            "fingerprint": federation.experiment.fingerprint,
            "round": federation.round,
            "files": {path.name: known.get(path.name) or _digest(path) for path in sorted(partial.iterdir())},
            "values": values,
        }
        sealed = {"state": state, "digest": _seal(state)}
        (partial / "state.json").write_text(json.dumps(sealed), encoding="utf-8")
        for path in (*(path for path in partial.iterdir() if path.name not in known), partial):
            _flush_to_disk(path)
        if final.exists():
            shutil.rmtree(final)
        partial.rename(final)
        _flush_to_disk(folder)
    except (OSError, safetensors.SafetensorError, RunError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        reason = getattr(error, "strerror", None) or str(error)
        raise RunError(
            f"cannot write the checkpoint of round {federation.round}: {reason}; earlier checkpoints are intact: make "
            f"room, then continue with `fedl2g resume {folder.parent}`"
        ) from error
    for old in _checkpoints(folder)[:-_KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def restore_checkpoint(folder: Path, federation: Federation) -> int:
    """Bring the federation to its newest sound checkpoint, or to its start when there is none; the round it is at."""
    shutil.rmtree(folder / ".partial", ignore_errors=True)
    found = _checkpoints(folder)
    for path in reversed(found):
        try:
            state = _read_state(path, federation.experiment.fingerprint)
            _load(path, federation, state["values"])
        except _Damaged as error:
            _log.warning("%s is damaged (%s); trying the one before it", path, error)
        else:
            return federation.round
    if found:
        raise RunError(
            f"every checkpoint in {folder} is damaged; nothing was changed. Restore the folder from a copy, or delete "
            "it to start the run again from round 0"
        )
    federation.engine.restore(None)
    federation.start_over()
    return 0


def _load(path: Path, federation: Federation, values: dict[str, Any]) -> None:
    """Bring the server and the clients to a checkpoint whose files are as they were written."""
    try:
        federation.load_state_dict(safetensors.torch.load_file(path / "server.safetensors"), values)
        federation.engine.restore(path)
    except (OSError, ValueError, LookupError, TypeError, RuntimeError, AttributeError, ArithmeticError) as error:
        raise _Damaged(f"it does not fit this experiment: {error!r}") from error
    except (safetensors.SafetensorError, PayloadError) as error:
        raise _Damaged(str(error)) from error


class _Damaged(FedL2GError):
    """A checkpoint that cannot be trusted."""


def _read_state(path: Path, fingerprint: str) -> dict[str, Any]:
    try:
        sealed = json.loads((path / "state.json").read_text(encoding="utf-8"))
        state: dict[str, Any] = sealed["state"]
        if sealed["digest"] != _seal(state):
            raise _Damaged("state.json is not as it was written")
        if state["format"] != _FORMAT:
            raise _Damaged(f"unknown format {state['format']!r}")
        files = dict(state["files"])
        belongs_to, values = state["fingerprint"], state["values"]
        found = {file.name: _digest(file) for file in path.iterdir() if file.name != "state.json"}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _Damaged(f"state.json cannot be read: {error!r}") from error
    if not isinstance(values, dict) or not isinstance(values.get("history"), list):
        raise _Damaged("state.json holds no history")
    if belongs_to != fingerprint:
        raise RunError(f"{path} belongs to another experiment; a run can only continue from its own checkpoints")
    if wrong := sorted(name for name in files.keys() | found.keys() if files.get(name) != found.get(name)):
        raise _Damaged(f"{wrong[0]} is missing or not as it was written")
    return state


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*"))


def _unchanged(partial: Path, folder: Path) -> dict[str, str]:
    """The files that are the very files of the newest checkpoint (clients that have not moved), with their digests.

    They are on disk already, and their digest stays the one of the moment they were written: made again now, it would
    seal a fault of the disk.
    """
    found = _checkpoints(folder)
    if not found:
        return {}
    try:
        files: dict[str, str] = json.loads((found[-1] / "state.json").read_text(encoding="utf-8"))["state"]["files"]
        return {
            path.name: files[path.name]
            for path in partial.iterdir()
            if path.name in files and (found[-1] / path.name).exists() and path.samefile(found[-1] / path.name)
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _seal(state: dict[str, Any]) -> str:
    """A digest of the state itself: nothing else would notice a changed digit in the history."""
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
