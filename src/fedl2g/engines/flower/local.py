"""A grid on this machine: nodes without a SuperLink, whose ClientApp runs in a few processes of their own."""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from flwr.app import Error, Message, Metadata, RecordDict

from fedl2g.engines import wire
from fedl2g.engines.flower.internals import take_identity
from fedl2g.engines.flower.local_node import as_tensor
from fedl2g.engines.flower.records import pack_records, unpack_records, unwrap
from fedl2g.engines.processes import WorkerProcess, release_process, take_process

_MODULE = "fedl2g.engines.flower.local_node"
_WAIT = 0.02  # seconds to wait for the first reply when looking for replies
_DIED = 0  # Flower's code for an unknown error
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LocalNode:
    """What is known of a node; it was never restarted and has no key."""

    node_id: int
    last_activated_at: str = ""
    public_key: bytes = b""


@dataclass
class _Lane:
    """A process, and the message that it serves: its id and itself."""

    number: int
    process: WorkerProcess
    task: tuple[str, Message] | None = None


@dataclass
class LocalGrid:
    """Delivers messages to the ClientApp of a simulated node, in the order in which they were sent.

    Node n is client n - 1. A process that dies is replaced, and the message that it served is answered by an error.
    """

    root: Path
    """Holds one folder per run with its clients' stores."""
    clients: int
    workers: int
    _lanes: list[_Lane] = field(default_factory=list)
    _queue: deque[tuple[str, Message]] = field(default_factory=deque)
    _replies: dict[str, Message] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        take_identity()
        try:
            self._lanes += [_Lane(number, take_process(_MODULE)) for number in range(self.workers)]
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """The ids of the processes."""
        return [lane.process.pid for lane in self._lanes]

    def get_nodes(self) -> list[LocalNode]:
        """All nodes, which are always there."""
        return [LocalNode(number) for number in range(1, self.clients + 1)]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages; returns their ids."""
        named = [(f"message-{next(self._numbers)}", message) for message in messages]
        self._queue.extend(named)
        self._dispatch()
        return [name for name, _ in named]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies to messages with these ids that have arrived; waits a moment for the first one."""
        wanted = set(message_ids)
        if wanted.isdisjoint(self._replies):
            self._collect()
        return [self._replies.pop(name) for name in wanted & self._replies.keys()]

    def close(self) -> None:
        """Give the processes back; those that serve a message end."""
        for lane in self._lanes:
            release_process(lane.process)
        self._lanes.clear()

    def _dispatch(self) -> None:
        for lane in self._lanes:
            while lane.task is None and self._queue:
                name, message = self._queue.popleft()
                about = message.metadata
                if about.created_at + about.ttl < time.time():  # expired
                    continue
                lane.task = (name, message)
                header = {
                    "message": name,
                    "root": str(self.root),
                    "worker": lane.number,
                    "node": about.dst_node_id,
                    "client": about.dst_node_id - 1,
                    "kind": about.message_type,
                }
                try:
                    lane.process.send(wire.pack(header, {"records": as_tensor(pack_records(unwrap(message.content)))}))
                except OSError:
                    self._died(lane)

    def _collect(self) -> None:
        busy = {lane.process.connection: lane for lane in self._lanes if lane.task is not None}
        for connection in wait(list(busy), _WAIT):
            lane: _Lane = busy[connection]  # type: ignore[index]  # a connection, as the keys are
            assert lane.task is not None
            try:
                header, answer = lane.process.receive()
            except (EOFError, OSError):
                self._died(lane)
                continue
            if "error" in header:
                self._reply(*lane.task, Error(_DIED, header["message"]))
            else:
                self._reply(*lane.task, unpack_records(answer["records"].numpy().tobytes()))
            lane.task = None
        self._dispatch()

    def _died(self, lane: _Lane) -> None:
        code = lane.process.exit_code()
        reason = f"its process {lane.process.pid} died ({f'signal {-code}' if code and code < 0 else f'code {code}'})"
        _log.warning("worker %d: %s; starting another", lane.number, reason)
        if lane.task is not None:
            self._reply(*lane.task, Error(_DIED, reason))
            lane.task = None
        lane.process.kill()
        lane.process = take_process(_MODULE)

    def _reply(self, name: str, request: Message, content: RecordDict | Error) -> None:
        make: Any = Message  # Flower's own constructor of replies needs a message id assigned by a SuperLink
        about = request.metadata
        found = Metadata(
            run_id=about.run_id, message_id=f"reply-to-{name}", src_node_id=about.dst_node_id,
            dst_node_id=about.src_node_id, reply_to_message_id=name, group_id=about.group_id,
            created_at=time.time(), ttl=about.ttl, message_type=about.message_type,
        )  # fmt: skip
        self._replies[name] = make(content, metadata=found)
