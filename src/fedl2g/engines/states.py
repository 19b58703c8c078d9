"""The states of clients outside memory: one file each, written behind, read ahead, shared with checkpoints by links.

A client's state is a safetensors file wherever it lies (a checkpoint, a host's own folder, a node's store): it is
named, written and read here and nowhere else.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from fedl2g.files import replacing

State = dict[str, Tensor]
Shapes = dict[str, tuple[int, ...]]

_WAITING = 8  # states that may wait for the disk before the computation does,
_WAITING_BYTES = 256 * 2**20  # and their size
_NETWORK = "model."  # what the names of the client's own network begin with, beside what its method keeps
_CLIENT_FILE = re.compile(r"client-([0-9]{6,})\.safetensors")


def client_file(directory: Path, client: int) -> Path:
    """Where a folder of states, such as a checkpoint, keeps the one of a client."""
    return directory / f"client-{client:06d}.safetensors"


def client_files(directory: Path) -> dict[int, Path]:
    """The clients whose states are in a folder, ascending, and their files."""
    found = ((path, _CLIENT_FILE.fullmatch(path.name)) for path in directory.iterdir())
    return dict(sorted((int(match[1]), path) for path, match in found if match is not None))


def network_of(state: Mapping[str, Tensor]) -> State:
    """The client's own network in its state, which also holds what the method keeps on the client."""
    return {name.removeprefix(_NETWORK): tensor for name, tensor in state.items() if name.startswith(_NETWORK)}


def write_state(
    path: Path, state: Mapping[str, Tensor], about: Mapping[str, str] | None = None, *, durable: bool = False
) -> None:
    """Write or replace a state's file in one step, with words `about` it; an OSError or a SafetensorError if not."""
    with replacing(path, durable=durable) as partial:
        safetensors.torch.save_file(dict(state), partial, *([dict(about)] if about is not None else []))


def read_state(path: Path) -> State:
    """The state in a file; an OSError or a SafetensorError if there is none."""
    return safetensors.torch.load_file(path)


class StateStore:
    """A folder of client states, made when it is first needed.

    A file is never changed once it has its name, only replaced: a checkpoint that holds a hard link to it keeps what it
    was given, and needs no room for a client that has not moved since.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._wanted = folder
        self._folder: Path | None = None
        self._known: set[int] = set()
        self._writing: OrderedDict[int, tuple[State, Future[None]]] = OrderedDict()
        self._reading: dict[int, Future[State]] = {}
        self._writer: ThreadPoolExecutor | None = None
        self._reader: ThreadPoolExecutor | None = None

    def __contains__(self, client: object) -> bool:
        return client in self._known

    def write(self, client: int, state: State) -> None:
        """Keep a state, and return when it is in its file."""
        self._settle(client)
        write_state(self._file(client), state)
        self._known.add(client)

    def write_behind(self, client: int, state: State) -> None:
        """Keep a state that nobody changes any more; it reaches its file while the caller goes on."""
        self._settle(client)
        while self._writing and (self._is_full(state) or next(iter(self._writing.values()))[1].done()):
            self._settle(next(iter(self._writing)))
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, thread_name_prefix="states written behind")
        written = self._writer.submit(write_state, self._file(client), state)
        self._writing[client] = (state, written)
        self._known.add(client)

    def read_ahead(self, client: int) -> None:
        """Start to read a state that will be asked for soon."""
        if client not in self._known or client in self._reading or client in self._writing:
            return
        if self._reader is None:
            self._reader = ThreadPoolExecutor(1, thread_name_prefix="states read ahead")
        self._reading[client] = self._reader.submit(read_state, self._file(client))

    def read(self, client: int) -> State:
        """The state of a client that is in the store."""
        if client in self._writing:
            return dict(self._writing[client][0])
        ahead = self._reading.pop(client, None)
        return ahead.result() if ahead is not None else read_state(self._file(client))

    def export(self, client: int, target: Path) -> None:
        """Give a state's file another name, in a checkpoint; a copy where the two lie on different disks."""
        self._settle(client)
        _link(self._file(client), target)

    def adopt(self, client: int, source: Path) -> None:
        """Take the file of a checkpoint as the client's state."""
        self._settle(client)
        _link(source, self._file(client))
        self._known.add(client)

    def clear(self) -> None:
        """Forget all states."""
        for client in list(self._writing):
            self._writing[client][1].cancel()
        self._stop()
        self._writing.clear()
        self._known.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    close = clear

    def _is_full(self, state: State) -> bool:
        """Whether one more state has to wait until others are written."""
        waiting = sum(_size(other) for other, _ in self._writing.values())
        return len(self._writing) >= _WAITING or waiting + _size(state) > _WAITING_BYTES

    def _settle(self, client: int) -> None:
        """Nothing of this client is on its way: a failed write is tried again, and is an error here.

        Until it succeeds the state stays in memory: there is no other copy.
        """
        self._reading.pop(client, None)
        if client in self._writing:
            state, written = self._writing[client]
            if written.exception() is not None:
                write_state(self._file(client), state)
            del self._writing[client]

    def _stop(self) -> None:
        for pool in (self._writer, self._reader):
            if pool is not None:
                pool.shutdown(cancel_futures=True)
        self._writer = self._reader = None
        self._reading.clear()

    def _file(self, client: int) -> Path:
        if self._folder is None:
            if self._wanted is None:
                self._folder = Path(tempfile.mkdtemp(prefix="fedl2g-states-"))
            else:
                self._wanted.mkdir(parents=True, exist_ok=True)
                self._folder = self._wanted
        return client_file(self._folder, client)


def _size(state: State) -> int:
    return sum(tensor.nbytes for tensor in state.values())


def shapes_of(state: State) -> Shapes:
    """The names and shapes of a state."""
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


def stored_shapes(path: Path) -> Shapes:
    """The names and shapes of a state in a file, whose values are not read."""
    with safetensors.safe_open(path, framework="pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (not a dict)


def _link(source: Path, target: Path) -> None:
    with replacing(target, durable=False) as partial:
        try:
            os.link(source, partial)
        except OSError:  # another disk, or one without links
            shutil.copyfile(source, partial)
