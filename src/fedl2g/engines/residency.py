"""Which clients of a host are in memory: the most recently used ones within its budget; the others are on disk."""

from __future__ import annotations

import tempfile
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import nn

from fedl2g.engines.states import Shapes, State, StateStore, client_file, client_files, shapes_of, stored_shapes
from fedl2g.errors import PayloadError, RunError
from fedl2g.files import quoted, reason_of
from fedl2g.methods.base import AnyClientHalf

_MODULE_BYTES = 4096  # overhead of a module besides its tensors (measured: 3.3 to 3.8 KB in the small networks)


class Residency:
    """An LRU cache of clients: builds them on first use and keeps the states of those that have changed.

    `kind` returns a client's architecture: clients of one kind take the same memory. `scratch` is used only in error
    messages.
    """

    def __init__(
        self,
        build: Callable[[int], AnyClientHalf],
        kind: Callable[[int], str],
        budget: int,
        store: StateStore,
        scratch: Path | None = None,
    ) -> None:
        self.budget = budget  # bytes
        self._build = build
        self._kind = kind
        self._store = store
        self._scratch = scratch
        self._halves: OrderedDict[int, AnyClientHalf] = OrderedDict()  # those in memory, most recently used last
        self._bytes: dict[str, int] = {}  # memory of one client of each kind
        self._measured: set[tuple[str, str]] = set()
        self._taken = 0
        self._changed: set[int] = set()  # clients that differ from their initial state, in memory or not
        self._unsaved: set[int] = set()  # clients in memory that have changed since they were last written
        self._upcoming: deque[int] = deque()

    def __len__(self) -> int:
        """The number of clients in memory."""
        return len(self._halves)

    def __contains__(self, client: int) -> bool:
        return client in self._halves

    def get(self, client: int) -> AnyClientHalf:
        """One client, loaded into memory if necessary."""
        if client in self._halves:
            self._halves.move_to_end(client)
        else:
            half = self._build(client)
            if client in self._store:
                with self._disk_errors("read", "continue"):
                    state = self._store.read(client)
                half.state.load_state_dict(state)
            self._halves[client] = half
            self._taken += self._bytes.get(self._kind(client), 0)
            self.measure(client, "built")
            self._evict()
        while self._upcoming and self._upcoming[0] == client:
            self._upcoming.popleft()
        if self._upcoming and self._upcoming[0] not in self._halves:
            self._store.read_ahead(self._upcoming[0])
        return self._halves[client]

    def expect(self, clients: Sequence[int]) -> None:
        """Announce the clients that will be needed, in this order, so that their states are prefetched."""
        self._upcoming = deque(clients)

    def changed(self, client: int) -> None:
        """Mark a client in memory as changed."""
        self._changed.add(client)
        self._unsaved.add(client)

    def measure(self, client: int, when: str) -> None:
        """Measure the memory of this kind of client, once per stage (`when`): each use may leave tensors behind."""
        kind = self._kind(client)
        if (kind, when) not in self._measured:
            self._measured.add((kind, when))
            self._bytes[kind] = max(self._bytes.get(kind, 0), bytes_of(self._halves[client]))
            self._taken = sum(self._bytes[self._kind(c)] for c in self._halves)

    def _evict(self) -> None:
        """Evict the least recently used clients until the others fit in the budget; the newest always stays."""
        while len(self._halves) > 1 and self._taken > self.budget:
            client, half = next(iter(self._halves.items()))
            if client in self._unsaved:
                with self._disk_errors("written", "make room, then continue"):
                    self._store.write_behind(client, state_of(half))
                self._unsaved.remove(client)
            del self._halves[client]
            self._taken -= self._bytes[self._kind(client)]

    @contextmanager
    def _disk_errors(self, what: str, advice: str) -> Iterator[None]:
        """Turn errors of reading or writing states into a RunError; checkpoints report their own errors."""
        try:
            yield
        except (OSError, SafetensorError) as error:
            place = self._scratch or tempfile.gettempdir()
            message = f"{place}: the state of a client cannot be {what} ({reason_of(error)})"
            if self._scratch is not None:
                message += (
                    f"; the last checkpoint is intact; {advice} with `fedl2g resume {quoted(self._scratch.parent)}`"
                )
            raise RunError(message) from error

    def state(self, client: int) -> State:
        """A copy of everything that changes over rounds on one client: its network and the method's private tensors."""
        return state_of(self.get(client))

    def load(self, client: int, state: State) -> None:
        """Load a state returned by `state` into one client."""
        self.get(client).state.load_state_dict(state)
        self.changed(client)

    def save(self, directory: Path) -> None:
        """Write one file per changed client; a state that has not changed since is linked, not written again."""
        for client in sorted(self._changed):
            if client in self._unsaved:
                self._store.write(client, state_of(self._halves[client]))
                self._unsaved.remove(client)
            self._store.export(client, client_file(directory, client))

    def restore(self, directory: Path | None, clients: frozenset[int] | None = None) -> None:
        """Reset every client, then adopt the states in the directory; only those of `clients`, if given."""
        self.close()
        shapes: dict[str, Shapes] = {}
        for client, path in client_files(directory).items() if directory is not None else ():
            if clients is not None and client not in clients:
                continue
            # The values are read on first use; names and shapes are checked now.
            kind = self._kind(client)
            if kind not in shapes:
                shapes[kind] = shapes_of(state_of(self._build(client)))
            if stored_shapes(path) != shapes[kind]:
                raise PayloadError(f"{path.name}: its tensors do not match a client with {kind}")
            self._store.adopt(client, path)
            self._changed.add(client)

    def close(self) -> None:
        """Discard every client, in memory and on disk."""
        self._halves.clear()
        self._taken = 0
        self._changed.clear()
        self._unsaved.clear()
        self._upcoming.clear()
        self._store.clear()


def state_of(half: AnyClientHalf) -> State:
    """A copy of everything that changes over rounds on a client."""
    # Contiguous, so that a file does not depend on the memory layout.
    return {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in half.state.state_dict().items()
    }


def bytes_of(half: AnyClientHalf) -> int:
    """The memory of a client: its tensors and its module objects."""
    held = nn.ModuleList([half.state, half.received])
    tensors = {id(tensor): tensor.nbytes for tensor in (*held.parameters(), *held.buffers())}
    return sum(tensors.values()) + _MODULE_BYTES * sum(1 for _ in held.modules())
