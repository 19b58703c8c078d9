"""A client's store on its node's disk: its state and its reply after each of the last rounds it trained in.

Each round is one file with a digest, so that state and reply are written together or not at all. Two rounds are kept:
a repeated request is answered without training again, and a server that falls back one round can be served. The server
says which round is the best so far; a link to the client's file of that round is kept as well. Reading the store does
not require Flower.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import filelock
import safetensors
import torch
from torch import Tensor

from fedl2g.engines.states import LARGEST_STATE, State, link, write_state
from fedl2g.errors import RunError, SettingError
from fedl2g.files import reason_of
from fedl2g.folder import Folder
from fedl2g.methods.base import Reply, Report
from fedl2g.seals import read_sealed, write_sealed

_KEPT = 2
_STATE, _REPLY, _RECEIVED = "state/", "reply/", "received/"  # prefixes of tensor names
_DIGEST = "digest"
_NAME = re.compile(r"(?:round|best)-([0-9]{6,})\.safetensors")
_BEST = "best.json"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainedRound:
    """A client after one of its rounds."""

    round: int
    state: Mapping[str, Tensor]
    reply: Reply | None  # None: a starting state without a reply
    request: str = ""  # the digest of the request it answers
    received: Mapping[str, Tensor] = field(default_factory=dict)  # the broadcast that its method predicts with


class NodeStore:
    """The stored rounds of one client in one run."""

    def __init__(self, root: Path, run: str, fingerprint: str, client: int) -> None:
        self.folder = client_folder(root, run, client)
        self.directory = self.folder.path
        self.client = client
        self.tag = {"run": run, "experiment": fingerprint, "client": str(client)}

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the store: of two processes with the same request, the second finds the first one's reply."""
        try:
            self.folder.make()
            if self.folder.status("lock") is not None and not self.folder.is_file("lock"):
                raise RunError(f"{self.directory / 'lock'}: is not a file; expected an empty one; remove it")
            lock = filelock.FileLock(self.directory / "lock")
            lock.acquire()
        except OSError as error:
            raise RunError(f"{self.directory}: cannot be written ({reason_of(error)}); make it writable") from error
        try:
            self.folder.remove_leftovers()
            yield
        finally:
            lock.release()

    def rounds(self) -> list[int]:
        """The stored rounds, ascending."""
        return list(_round_files(self.folder))

    def read(self, round: int) -> TrainedRound:
        """Read one of the stored rounds."""
        path = self._path(round)
        tensors, about = _read(self.folder, path.name)
        if any(about.get(key) != value for key, value in self.tag.items()):
            raise RunError(f"{path}: belongs to another experiment or client; choose another store")
        try:
            report = json.loads(about["report"])
            reply = Reply(self.client, _part(tensors, _REPLY), Report(**report)) if report is not None else None
            return TrainedRound(round, _part(tensors, _STATE), reply, about["request"], _part(tensors, _RECEIVED))
        except (KeyError, ValueError, TypeError) as error:
            raise RunError(f"{path}: cannot be read ({error!r}); restore it from a copy") from error

    def before(self, round: int) -> TrainedRound | None:
        """The stored round that precedes a round; None for a client that has not trained before it."""
        kept = self.rounds()
        earlier = [number for number in kept if number < round]
        if not earlier and kept and kept[0] > round:
            raise RunError(
                f"client {self.client}: round {round} was requested, but its store {self.directory} only goes back to "
                f"round {kept[0]}; start a new run"
            )
        return self.read(earlier[-1]) if earlier else None

    def add(self, trained: TrainedRound) -> None:
        """Add a round; delete all later rounds, which the server has rolled back, and all but one earlier one."""
        self.write(trained)
        kept = self.rounds()
        later = [number for number in kept if number > trained.round]
        for number in later + [number for number in kept if number <= trained.round][:-_KEPT]:
            self.folder.remove(self._path(number).name)

    def write(self, trained: TrainedRound) -> None:
        """Write or replace a round."""
        report = None if trained.reply is None else asdict(trained.reply.report)
        tensors = {_STATE + name: tensor for name, tensor in trained.state.items()}
        if trained.reply is not None:
            tensors |= {_REPLY + name: tensor for name, tensor in trained.reply.payload.items()}
        tensors |= {_RECEIVED + name: tensor for name, tensor in trained.received.items()}
        tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        about = {
            **self.tag,
            "round": str(trained.round),
            "request": trained.request,
            "report": json.dumps(report),
        }
        path = self._path(trained.round)
        try:
            self.folder.make()
            write_state(path, tensors, {**about, _DIGEST: _digest(tensors, about)}, durable=True)
        except (OSError, safetensors.SafetensorError) as error:
            raise RunError(f"{path}: cannot be written ({reason_of(error)}); the earlier content is intact") from error

    def keep_best(self, best: int) -> None:
        """Keep the client's state after this round, the best so far; must be called before the store changes.

        The previous best is kept too: a server that falls back one round may name it again.
        """
        try:
            if _best_round(self.folder) == best:
                return
        except RunError as error:  # written anew below
            _log.warning("%s", error)
        earlier = [number for number in self.rounds() if number <= best]
        target = self.directory / f"best-{best:06d}.safetensors"
        try:
            if earlier and not self.folder.is_file(target.name):
                link(self._path(earlier[-1]), target)
            self.folder.make()
            write_sealed(self.folder, _BEST, {"round": best}, of=self.tag["run"])
            kept = _round_files(self.folder, "best")
            for number in [*(n for n in kept if n > best), *[n for n in kept if n <= best][:-_KEPT]]:
                self.folder.remove(kept[number])
        except OSError as error:
            raise RunError(
                f"{target}: cannot be written ({reason_of(error)}); the earlier content is intact"
            ) from error

    def _path(self, round: int) -> Path:
        return self.directory / f"round-{round:06d}.safetensors"


def client_folder(root: Path, run: str, client: int) -> Folder:
    """The folder of one client of a run in a store."""
    return Folder(root) / run / f"client-{client:06d}"


def find_client(root: Path, client: int, run: str | None = None) -> Folder:
    """The folder of a client in the given run, by default its newest."""
    found = {}
    for name in Folder(root).names():
        path = client_folder(root, name, client).path
        if path.is_dir():
            found[name] = path.stat().st_mtime
    chosen = [name for name in found if run in (None, name)]
    if not chosen:
        runs = ", ".join(found) or "none"
        raise SettingError(
            f"{root}: the store has no model of client {client} for this run; expected one of its runs: {runs}"
        )
    return client_folder(root, max(chosen, key=lambda name: found[name]), client)


@dataclass(frozen=True)
class StoredModel:
    """A client's model in a store."""

    run: str
    round: int  # the last round it trained in, or the best round
    state: State
    received: State  # the broadcast that its method predicts with


def stored_model(folder: Folder, which: Literal["best", "last"]) -> StoredModel:
    """The model in a client's folder: after the last round it trained in, or after the best round of the run."""
    if which == "best":
        round = _best_round(folder)
        if round is None:
            raise RunError(
                f"{folder.path}: the coordinator has not named a best round yet; take the model of the last round, "
                "--which last"
            )
        name = f"best-{round:06d}.safetensors"
        if folder.status(name) is None:
            raise RunError(
                f"{folder.path}: the client had not trained by the best round, {round}; take the model of the last "
                "round, --which last"
            )
    else:
        files = _round_files(folder)
        if not files:
            raise RunError(f"{folder.path}: no model found; the client has not finished a round")
        round, name = list(files.items())[-1]
    tensors, about = _read(folder, name)
    *_, run, client = folder.parts
    if (about.get("run"), f"client-{about.get('client', ''):>06}") != (run, client):
        raise RunError(f"{folder.path / name}: belongs to another run or client; restore it from a copy")
    return StoredModel(about["run"], round, _part(tensors, _STATE), _part(tensors, _RECEIVED))


def _best_round(folder: Folder) -> int | None:
    """The round that the coordinator has named the best; None before it has named one."""
    if folder.status(_BEST) is None:
        return None
    named = read_sealed(folder, _BEST, of=folder.parts[-2], remedy="the coordinator's next request writes it again")
    round = named.get("round")
    if type(round) is not int or round < 0:
        raise RunError(f"{folder.path / _BEST}: names no round; the coordinator's next request writes it again")
    return round


def _round_files(folder: Folder, kind: str = "round") -> dict[int, str]:
    found = ((name, _NAME.fullmatch(name)) for name in folder.names() if name.startswith(kind))
    return dict(sorted((int(match[1]), name) for name, match in found if match is not None))


def _read(folder: Folder, name: str) -> tuple[State, dict[str, str]]:
    path = folder.path / name
    try:
        with folder.checked_path(name, LARGEST_STATE) as opened, safetensors.safe_open(opened, framework="pt") as file:
            about: dict[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            sound = about.pop(_DIGEST, None) == _digest(tensors, about)
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise RunError(f"{path}: cannot be read ({error}); restore it from a copy") from error
    if not sound:
        raise RunError(f"{path}: corrupted, its digest differs; restore it from a copy")
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
