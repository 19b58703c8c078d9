"""A client's life on its node's own disk: its state after the last rounds it trained in, and what it answered then.

Each of these rounds is one file, so that state and answer exist together or not at all, with a digest of what it holds.
Two are kept: a repeated request is answered without training again, and a server that fell back a round is served too.
No Flower is needed to read them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import filelock
import safetensors
import torch
from torch import Tensor

from fedl2g.engines.states import State, write_state
from fedl2g.errors import RunError, SettingError
from fedl2g.files import reason_of, remove_leftovers
from fedl2g.methods.base import Reply, Report

_KEPT = 2
_STATE, _REPLY = "state/", "reply/"  # of names of tensors
_DIGEST = "digest"
_NAME = re.compile(r"round-([0-9]{6,})\.safetensors")


@dataclass(frozen=True)
class TrainedRound:
    """A client after one of its rounds."""

    round: int
    state: Mapping[str, Tensor]
    reply: Reply | None  # None: a starting state that answers no request
    request: str = ""  # the digest of the request that led to it


class NodeStore:
    """The rounds that are kept of one client in one run."""

    def __init__(self, root: Path, run: str, fingerprint: str, client: int) -> None:
        self.directory = client_folder(root, run, client)
        self.client = client
        self.tag = {"run": run, "experiment": fingerprint, "client": str(client)}

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the store: of two processes with the same request the second finds the first one's answer."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(self.directory / "lock")
            lock.acquire()
        except OSError as error:
            raise RunError(f"cannot write to the store {self.directory}: {reason_of(error)}") from error
        try:
            remove_leftovers(self.directory)
            yield
        finally:
            lock.release()

    def rounds(self) -> list[int]:
        """The rounds after which the state is kept, ascending."""
        return list(_round_files(self.directory))

    def read(self, round: int) -> TrainedRound:
        """One of the rounds that are kept."""
        path = self._path(round)
        tensors, about = _read(path)
        if any(about.get(key) != value for key, value in self.tag.items()):
            raise RunError(f"{path} belongs to another experiment or client; choose another store")
        try:
            report = json.loads(about["report"])
            reply = Reply(self.client, _part(tensors, _REPLY), Report(**report)) if report is not None else None
            return TrainedRound(round, _part(tensors, _STATE), reply, about["request"])
        except (KeyError, ValueError, TypeError) as error:
            raise RunError(f"{path} cannot be read ({error!r}); restore it from a copy") from error

    def before(self, round: int) -> TrainedRound | None:
        """The state at the start of a round: after the last one before it; None for a client as freshly built."""
        kept = self.rounds()
        earlier = [number for number in kept if number < round]
        if not earlier and kept and kept[0] > round:
            raise RunError(
                f"client {self.client} is asked for round {round}, but its store {self.directory} only goes back to "
                f"round {kept[0]}"
            )
        return self.read(earlier[-1]) if earlier else None

    def add(self, trained: TrainedRound) -> None:
        """Add a round; those after it are not part of the run any more, of those before it one is kept."""
        self.write(trained)
        kept = self.rounds()
        later = [number for number in kept if number > trained.round]
        for number in later + [number for number in kept if number <= trained.round][:-_KEPT]:
            self._path(number).unlink(missing_ok=True)

    def write(self, trained: TrainedRound) -> None:
        """Write or replace a round."""
        report = None if trained.reply is None else asdict(trained.reply.report)
        tensors = {_STATE + name: tensor for name, tensor in trained.state.items()}
        if trained.reply is not None:
            tensors |= {_REPLY + name: tensor for name, tensor in trained.reply.payload.items()}
        tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        about = {
            **self.tag,
            "round": str(trained.round),
            "request": trained.request,
            "report": json.dumps(report),
        }
        path = self._path(trained.round)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_state(path, tensors, {**about, _DIGEST: _digest(tensors, about)}, durable=True)
        except (OSError, safetensors.SafetensorError) as error:
            raise RunError(f"cannot write {path}: {reason_of(error)}; what was there before is intact") from error

    def _path(self, round: int) -> Path:
        return self.directory / f"round-{round:06d}.safetensors"


def client_folder(root: Path, run: str, client: int) -> Path:
    """Where a store keeps one client of a run."""
    return root / run / f"client-{client:06d}"


def find_client(root: Path, client: int, run: str | None = None) -> Path:
    """The folder of a client in its newest run, or in the one named."""
    found = [path for path in root.glob("*/client-*") if path == client_folder(root, path.parent.name, client)]
    chosen = [path for path in found if run in (None, path.parent.name)]
    if not chosen:
        runs = ", ".join(sorted(path.parent.name for path in found)) or "none"
        raise SettingError(f"the store {root} holds no model of client {client} for this run; its runs: {runs}")
    return max(chosen, key=lambda path: path.stat().st_mtime)


def newest_state(folder: Path) -> tuple[int, State, dict[str, str]]:
    """The newest round in a client's folder, the client's state after it and what is written about it."""
    files = _round_files(folder)
    if not files:
        raise RunError(f"{folder} holds no model: the client has not finished a round")
    round, path = list(files.items())[-1]
    tensors, about = _read(path)
    return round, _part(tensors, _STATE), about


def _round_files(folder: Path) -> dict[int, Path]:
    found = ((path, _NAME.fullmatch(path.name)) for path in folder.glob("round-*.safetensors"))
    return dict(sorted((int(match[1]), path) for path, match in found if match is not None))


def _read(path: Path) -> tuple[State, dict[str, str]]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            about: dict[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, safetensors.SafetensorError) as error:
        raise RunError(f"{path} cannot be read ({error}); restore it from a copy") from error
    if about.pop(_DIGEST, None) != _digest(tensors, about):
        raise RunError(f"{path} is not as it was written (its digest differs); restore it from a copy")
    return tensors, about


def _digest(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _part(tensors: Mapping[str, Tensor], prefix: str) -> State:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
