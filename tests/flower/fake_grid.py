"""A grid in this process: nodes are functions, and a test decides what they answer and when."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flwr.app import Context, Error, Message, RecordDict

from fedl2g.deploy.keys import public_pem, write_key_pair
from fedl2g.deploy.registered import bind_key
from fedl2g.engines.flower import identity
from fedl2g.engines.flower.actor import client_app
from fedl2g.engines.flower.internals import take_identity
from fedl2g.engines.flower.terms import Terms
from fedl2g.experiment import Experiment
from fedl2g.setup import Setup, prepare

take_identity()

QUICK = Terms(poll_seconds=0.005, first_pause=0.01)  # those of a deployment, in short
NODE_UNAVAILABLE = 5


def tiny_setup(**settings: Any) -> Setup:
    """Three clients with a tiny share of digits each."""
    execution = settings.pop("execution", {})
    given = {
        "method": {"name": "fedl2g-f", "warmup_rounds": 0}, "dataset": "digits", "samples": 120, "models": "small_cnn",
        "clients": 3, "rounds": 2, "partition": "iid", "execution": {"engine": "flower", **execution}, **settings,
    }  # fmt: skip
    return prepare(Experiment(**given))


def register(coordinator: Path, *sites: str) -> list[bytes]:
    """Make a key for each site and bind it; the public keys as Flower shows them."""
    keys = []
    for site in sites:
        public = write_key_pair(coordinator / f"{site}_key")
        bind_key(public, site, coordinator)
        keys.append(public_pem(public.read_text(), public))
    return keys


class FakeClock:
    """Time that passes only when somebody sleeps: no test depends on how busy the machine is."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


Handler = Callable[[Message], Message | None]


@dataclass
class FakeNode:
    """One node: what it does with a message, how long it takes, whether it is there."""

    handle: Handler
    seconds: float = 0.0
    gone: bool = False
    started: str = "once"
    public_key: bytes = b""
    received: list[str] = field(default_factory=list)


class FakeGrid:
    """What the engine uses of Flower's Grid."""

    def __init__(self, nodes: dict[int, FakeNode], clock: FakeClock) -> None:
        self.nodes = nodes
        self.clock = clock
        self.replies: dict[str, tuple[float, Message]] = {}
        self._ids = itertools.count()

    def get_node_ids(self) -> list[int]:
        return [number for number, node in self.nodes.items() if not node.gone]

    def get_nodes(self) -> list[SimpleNamespace]:
        found = {n: self.nodes[n] for n in self.get_node_ids()}
        return [
            SimpleNamespace(node_id=n, last_activated_at=node.started, public_key=node.public_key)
            for n, node in found.items()
        ]

    def push_messages(self, requests: Iterable[Message]) -> list[str]:
        sent = []
        for request in requests:
            name = f"message-{next(self._ids)}"
            request.metadata.__dict__["_message_id"] = name  # as Flower does, for its own constructor of replies
            node = self.nodes[request.metadata.dst_node_id]
            node.received.append(request.metadata.message_type)
            reply = Message(Error(NODE_UNAVAILABLE, "gone"), reply_to=request) if node.gone else node.handle(request)
            if reply is not None:
                late = 0.0 if request.metadata.message_type == "query" else node.seconds
                self.replies[name] = (self.clock.monotonic() + late, reply)
            sent.append(name)
        return sent

    def pull_messages(self, names: Iterable[str]) -> list[Message]:
        now = self.clock.monotonic()
        ready = [name for name in names if name in self.replies and self.replies[name][0] <= now]
        return [self.replies.pop(name)[1] for name in ready]


def honest(root: Path, client: int) -> Handler:
    """A node that does what the simulation's nodes do."""
    app, context = client_app(root), Context(1, 1, {"partition-id": client}, RecordDict(), {})
    return lambda request: app(request, context)


def corrupting(handle: Handler, corrupt: Callable[[RecordDict], None], kind: str = "train") -> Handler:
    """A node whose replies of one kind are corrupted."""

    def answer(request: Message) -> Message | None:
        reply = handle(request)
        if reply is not None and request.metadata.message_type == kind:
            corrupt(reply.content)
        return reply

    return answer


def stranger(client: Any) -> Handler:
    """A node that claims to be some client, and answers nothing else."""
    return lambda request: (
        Message(identity.pack_identity(client), reply_to=request) if request.metadata.message_type == "query" else None
    )


class FakeSimulation:
    """Stands for a simulation: nodes in this process, stores below a folder."""

    def __init__(self, root: Path, clients: int, clock: FakeClock) -> None:
        self.root = root
        self.workers = clients
        self.grid: Any = FakeGrid({100 + client: FakeNode(honest(root, client)) for client in range(clients)}, clock)

    def close(self) -> None:
        """Nothing to end."""
