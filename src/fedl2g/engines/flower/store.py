"""A client's life on its node's own disk: its state after the last rounds it trained in, and what it answered then.

Each generation is one file, written aside, flushed and renamed, so that state and answer exist together or not at
all. Two are kept: a repeated request is answered without training again, and a server that fell back a round is
served too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import filelock
import safetensors
import safetensors.torch
from torch import Tensor

from fedl2g.errors import RunError
from fedl2g.methods.base import Reply, Report

_KEPT = 2
_STATE, _REPLY = "state/", "reply/"


@dataclass(frozen=True)
class Generation:
    """A client after one of its rounds."""

    round: int
    state: Mapping[str, Tensor]
    reply: Reply | None  # None: a starting state that answers no request
    request: str = ""  # the digest of the request that led to it


class Store:
    """The generations of one client in one run."""

    def __init__(self, root: Path, run: str, fingerprint: str, client: int) -> None:
        self.directory = root / run / f"client-{client:06d}"
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
            raise RunError(f"cannot write to the store {self.directory}: {error.strerror}") from error
        try:
            yield
        finally:
            lock.release()

    def rounds(self) -> list[int]:
        """The rounds after which the state is kept, ascending."""
        return sorted(int(path.stem.removeprefix("round-")) for path in self.directory.glob("round-*.safetensors"))

    def read(self, round: int) -> Generation:
        """One generation."""
        path = self._path(round)
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                about = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        except (OSError, safetensors.SafetensorError) as error:
            raise RunError(f"{path} cannot be read ({error}); restore it from a copy") from error
        if any(about.get(key) != value for key, value in self.tag.items()):
            raise RunError(f"{path} belongs to another experiment or client; choose another store")
        report = json.loads(about["report"])
        reply = Reply(self.client, _part(tensors, _REPLY), Report(**report)) if report is not None else None
        return Generation(round, _part(tensors, _STATE), reply, about["request"])

    def before(self, round: int) -> Generation | None:
        """The state at the start of a round: after the last one before it; None for a client as freshly built."""
        kept = self.rounds()
        earlier = [number for number in kept if number < round]
        if not earlier and kept and kept[0] > round:
            raise RunError(
                f"client {self.client} is asked for round {round}, but its store {self.directory} only goes back to "
                f"round {kept[0]}"
            )
        return self.read(earlier[-1]) if earlier else None

    def add(self, generation: Generation) -> None:
        """Add a generation; later ones belong to a future that will not be, earlier ones go when two are there."""
        self.write(generation)
        kept = self.rounds()
        for number in (
            *(n for n in kept if n > generation.round),
            *[n for n in kept if n <= generation.round][:-_KEPT],
        ):
            self._path(number).unlink(missing_ok=True)

    def write(self, generation: Generation) -> None:
        """Write or replace a generation."""
        report = None if generation.reply is None else asdict(generation.reply.report)
        about = {
            **self.tag,
            "round": str(generation.round),
            "request": generation.request,
            "report": json.dumps(report),
        }
        tensors = {_STATE + name: tensor for name, tensor in generation.state.items()}
        if generation.reply is not None:
            tensors |= {_REPLY + name: tensor for name, tensor in generation.reply.payload.items()}
        path = self._path(generation.round)
        partial = path.with_suffix(".partial")
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            safetensors.torch.save_file(
                {n: t.detach().cpu().contiguous().clone() for n, t in tensors.items()}, partial, about
            )
            _flush(partial)
            partial.replace(path)
            _flush(self.directory)
        except (OSError, safetensors.SafetensorError) as error:
            partial.unlink(missing_ok=True)
            raise RunError(f"cannot write {path}: {error}; what was there before is intact") from error

    def _path(self, round: int) -> Path:
        return self.directory / f"round-{round:06d}.safetensors"


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
