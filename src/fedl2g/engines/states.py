"""Client states on disk: one file each, written behind, read ahead, shared with checkpoints through hard links.

A client's state is a safetensors file everywhere (in a checkpoint, a host's folder, a node's store); only this module
names, writes and reads these files.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from fedl2g.files import replacing
from fedl2g.folder import GIB, MIB
from fedl2g.temporary import remove_folder, temporary_folder

State = dict[str, Tensor]
Shapes = dict[str, tuple[int, ...]]

LARGEST_STATE = 4 * GIB  # bytes of a state file that is written or read
_QUEUED = 8  # states that may be queued for writing before `write_behind` blocks,
_QUEUED_BYTES = 256 * 2**20  # and their total size
_CLIENT_FILE = re.compile(r"client-([0-9]{6,})\.safetensors")


def client_file(directory: Path, client: int) -> Path:
    """The path of a client's state in a folder of states, such as a checkpoint."""
    return directory / f"client-{client:06d}.safetensors"


def client_files(directory: Path) -> dict[int, Path]:
    """The state files in a folder by client, ascending."""
    found = ((path, _CLIENT_FILE.fullmatch(path.name)) for path in directory.iterdir())
    return dict(sorted((int(match[1]), path) for path, match in found if match is not None))


def write_state(
    path: Path, state: Mapping[str, Tensor], about: Mapping[str, str] | None = None, *, durable: bool = False
) -> None:
    """Write or replace a state file atomically, with metadata `about`; raises OSError or SafetensorError."""
    if _size(state) > LARGEST_STATE - MIB:  # the rest is for the names
        raise OSError(
            errno.EFBIG, f"the state of {_size(state) / GIB:.1f} GiB is larger than {LARGEST_STATE // GIB} GiB"
        )
    with replacing(path, durable=durable) as partial:
        safetensors.torch.save_file(dict(state), partial, *([dict(about)] if about is not None else []))


def read_state(path: Path) -> State:
    """Read a state file; raises OSError or SafetensorError."""
    return safetensors.torch.load_file(path)


class StateStore:
    """A folder of client states, created on first use.

    Files are only ever replaced, never modified: a checkpoint's hard link keeps its content, and an unchanged client
    takes no additional disk space.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._requested = folder
        self._folder: Path | None = None
        self._known: set[int] = set()
        self._writing: OrderedDict[int, tuple[State, Future[None]]] = OrderedDict()
        self._reading: dict[int, Future[State]] = {}
        self._writer: ThreadPoolExecutor | None = None
        self._reader: ThreadPoolExecutor | None = None

    def __contains__(self, client: object) -> bool:
        return client in self._known

    def write(self, client: int, state: State) -> None:
        """Store a state synchronously."""
        self._settle(client)
        write_state(self._file(client), state)
        self._known.add(client)

    def write_behind(self, client: int, state: State) -> None:
        """Store a state in the background; the caller must not modify it afterwards."""
        self._settle(client)
        while self._writing and (self._is_full(state) or next(iter(self._writing.values()))[1].done()):
            self._settle(next(iter(self._writing)))
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, thread_name_prefix="state writer")
        written = self._writer.submit(write_state, self._file(client), state)
        self._writing[client] = (state, written)
        self._known.add(client)

    def read_ahead(self, client: int) -> None:
        """Start reading a state that will be needed soon."""
        if client not in self._known or client in self._reading or client in self._writing:
            return
        if self._reader is None:
            self._reader = ThreadPoolExecutor(1, thread_name_prefix="state reader")
        self._reading[client] = self._reader.submit(read_state, self._file(client))

    def read(self, client: int) -> State:
        """The state of a client that is in the store."""
        if client in self._writing:
            return dict(self._writing[client][0])
        ahead = self._reading.pop(client, None)
        return ahead.result() if ahead is not None else read_state(self._file(client))

    def export(self, client: int, target: Path) -> None:
        """Hard-link a state's file into a checkpoint; copy it across file systems."""
        self._settle(client)
        link(self._file(client), target)

    def adopt(self, client: int, source: Path) -> None:
        """Use a checkpoint's file as the client's state."""
        self._settle(client)
        link(source, self._file(client))
        self._known.add(client)

    def clear(self) -> None:
        """Delete all states."""
        for client in list(self._writing):
            self._writing[client][1].cancel()
        self._stop()
        self._writing.clear()
        self._known.clear()
        if self._folder is not None:
            remove_folder(self._folder)
            self._folder = None

    close = clear

    def _is_full(self, state: State) -> bool:
        """Whether the write queue has no room for one more state."""
        queued = sum(_size(other) for other, _ in self._writing.values())
        return len(self._writing) >= _QUEUED or queued + _size(state) > _QUEUED_BYTES

    def _settle(self, client: int) -> None:
        """Wait for pending I/O of this client; a failed write is retried once, and its error raised here.

        The state stays in memory until it has been written: there is no other copy.
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
            if self._requested is None:
                self._folder = temporary_folder("states")
            else:
                self._requested.mkdir(parents=True, exist_ok=True)
                self._folder = self._requested
        return client_file(self._folder, client)


def _size(state: Mapping[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in state.values())


def shapes_of(state: State) -> Shapes:
    """The names and shapes of a state."""
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


def stored_shapes(path: Path) -> Shapes:
    """The names and shapes in a state file, without reading its values."""
    with safetensors.safe_open(path, framework="pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (not a dict)


def link(source: Path, target: Path) -> None:
    """Hard-link a file that is never modified; copy it where that is impossible."""
    with replacing(target, durable=False) as partial:
        try:
            os.link(source, partial, follow_symlinks=False)
        except (OSError, NotImplementedError):  # another file system, or one without hard links
            shutil.copyfile(source, partial, follow_symlinks=False)
