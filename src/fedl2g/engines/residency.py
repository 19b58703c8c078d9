"""Which clients of a host are in memory: those used last, as many as its budget allows; the others wait on disk."""

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
from fedl2g.files import reason_of
from fedl2g.methods.base import AnyClientHalf

_MODULE_BYTES = 4096  # of a module beside its tensors' values (measured: 3.3 to 3.8 KB in the small networks)


class Residency:
    """Builds clients when they are first needed and keeps the states of all that have changed.

    `kind` names a client's architecture: clients of one kind take the same memory. `scratch` is only named in messages.
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
        self._halves: OrderedDict[int, AnyClientHalf] = OrderedDict()  # those in memory, the last used at the end
        self._bytes: dict[str, int] = {}  # what a client of each kind takes
        self._weighed: set[tuple[str, str]] = set()
        self._taken = 0
        self._changed: set[int] = set()  # all that are not as freshly built, in memory or not
        self._unsaved: set[int] = set()  # those in memory that have changed since the store saw them
        self._coming: deque[int] = deque()

    def __len__(self) -> int:
        """How many clients are in memory."""
        return len(self._halves)

    def __contains__(self, client: int) -> bool:
        return client in self._halves

    def get(self, client: int) -> AnyClientHalf:
        """One client, brought to memory if it is not there."""
        if client in self._halves:
            self._halves.move_to_end(client)
        else:
            half = self._build(client)
            if client in self._store:
                with self._disk("read", "continue"):
                    state = self._store.read(client)
                half.state.load_state_dict(state)
            self._halves[client] = half
            self._taken += self._bytes.get(self._kind(client), 0)
            self.weigh(client, "built")
            self._make_room()
        while self._coming and self._coming[0] == client:
            self._coming.popleft()
        if self._coming and self._coming[0] not in self._halves:
            self._store.read_ahead(self._coming[0])
        return self._halves[client]

    def expect(self, clients: Sequence[int]) -> None:
        """Say who will be asked for, in this order."""
        self._coming = deque(clients)

    def changed(self, client: int) -> None:
        """A client in memory is no longer as it was."""
        self._changed.add(client)
        self._unsaved.add(client)

    def weigh(self, client: int, when: str) -> None:
        """Learn what clients of this kind take: once as built, and once after each use, which may leave tensors."""
        kind = self._kind(client)
        if (kind, when) not in self._weighed:
            self._weighed.add((kind, when))
            self._bytes[kind] = max(self._bytes.get(kind, 0), bytes_of(self._halves[client]))
            self._taken = sum(self._bytes[self._kind(c)] for c in self._halves)

    def _make_room(self) -> None:
        """Send the least recently used clients to the disk until the others fit; the newest stays in any case."""
        while len(self._halves) > 1 and self._taken > self.budget:
            client, half = next(iter(self._halves.items()))
            if client in self._unsaved:
                with self._disk("write", "make room, then continue"):
                    self._store.write_behind(client, state_of(half))
                self._unsaved.remove(client)
            del self._halves[client]
            self._taken -= self._bytes[self._kind(client)]

    @contextmanager
    def _disk(self, what: str, advice: str) -> Iterator[None]:
        """Around the use of the states on disk outside checkpoints, which have a sentence of their own."""
        try:
            yield
        except (OSError, SafetensorError) as error:
            place = self._scratch or tempfile.gettempdir()
            message = f"cannot {what} the state of a client in {place}: {reason_of(error)}"
            if self._scratch is not None:
                message += f"; the last checkpoint is intact: {advice} with `fedl2g resume {self._scratch.parent}`"
            raise RunError(message) from error

    def state(self, client: int) -> State:
        """A copy of all that changes over rounds on one client: its network and the method's private tensors."""
        return state_of(self.get(client))

    def load(self, client: int, state: State) -> None:
        """Bring one client to a state that `state` gave."""
        self.get(client).state.load_state_dict(state)
        self.changed(client)

    def save(self, directory: Path) -> None:
        """Give each changed client's state a file of its own; one that has not moved since is not written again."""
        for client in sorted(self._changed):
            if client in self._unsaved:
                self._store.write(client, state_of(self._halves[client]))
                self._unsaved.remove(client)
            self._store.export(client, client_file(directory, client))

    def restore(self, directory: Path | None, clients: frozenset[int] | None = None) -> None:
        """Forget every client and take the states in the directory; only of these clients, if they are named."""
        self.close()
        shapes: dict[str, Shapes] = {}
        for client, path in client_files(directory).items() if directory is not None else ():
            if clients is not None and client not in clients:
                continue
            # Read when it is needed; whether it will fit is seen now, by its names and shapes.
            kind = self._kind(client)
            if kind not in shapes:
                shapes[kind] = shapes_of(state_of(self._build(client)))
            if stored_shapes(path) != shapes[kind]:
                raise PayloadError(f"{path.name} does not fit a client with {kind}")
            self._store.adopt(client, path)
            self._changed.add(client)

    def close(self) -> None:
        """Forget every client, in memory and on disk."""
        self._halves.clear()
        self._taken = 0
        self._changed.clear()
        self._unsaved.clear()
        self._coming.clear()
        self._store.clear()


def state_of(half: AnyClientHalf) -> State:
    """A copy of what changes over rounds on a client."""
    # Row by row whatever the layout in memory: a file does not depend on it.
    return {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in half.state.state_dict().items()
    }


def bytes_of(half: AnyClientHalf) -> int:
    """The memory of a client: its tensors, and the objects that its networks are made of."""
    held = nn.ModuleList([half.state, half.received])
    tensors = {id(tensor): tensor.nbytes for tensor in (*held.parameters(), *held.buffers())}
    return sum(tensors.values()) + _MODULE_BYTES * sum(1 for _ in held.modules())
