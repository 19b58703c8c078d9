"""The server's view of the nodes: which are connected, and which client lives on which."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from flwr.app import Message, RecordDict

from fedl2g.engines.flower.identity import Disclosed, Refused, unpack_disclosed, unpack_identity
from fedl2g.engines.flower.strict import printable
from fedl2g.engines.flower.terms import Clock, Terms
from fedl2g.errors import PayloadError

_log = logging.getLogger(__name__)
_RESTART_POLLS = 20  # polls between two checks for restarted nodes


class NodeView(Protocol):
    """What a grid knows of a connected node."""

    @property
    def node_id(self) -> int: ...

    @property
    def last_activated_at(self) -> str: ...

    @property
    def public_key(self) -> bytes: ...


class MessageGrid(Protocol):
    """The part of Flower's Grid that is used here."""

    def get_nodes(self) -> Iterable[NodeView]: ...

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str | None]: ...

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]: ...


class Nodes:
    """Maps clients to nodes by querying each node once for its identity, and exchanges messages with them.

    `keys` are the clients to which public keys belong: a node that claims to be another client than its key's is
    refused. None in a simulation, whose nodes have no keys.
    """

    def __init__(
        self,
        grid: MessageGrid,
        clients: int,
        terms: Terms,
        clock: Clock = time,
        keys: Mapping[bytes, int] | None = None,
    ) -> None:
        self.grid = grid
        self.clients = clients
        self.terms = terms
        self.clock = clock
        self.keys = keys
        self.rejected: set[int] = set()  # nodes that hold none of our clients
        self.false_claims: dict[int, str] = {}  # client -> why the node with its key is refused
        self.disclosed: dict[int, Disclosed] = {}  # what the nodes disclose about their clients
        self._failures: Counter[int] = Counter()  # node -> how often it failed to say which client it is
        self._retries: dict[int, float] = {}  # node -> not before this time
        self._owners: dict[int, int] = {}  # node -> the client to which its key belongs
        self.quick: set[int] = set()  # clients whose last answer came soon
        self.wake_messages: set[str] = set()  # ids of messages that only keep nodes awake
        self._homes: dict[int, int] = {}  # client -> node
        self._queries: dict[str, int] = {}  # message id -> node whose identity was queried
        self._started: dict[int, str] = {}  # node -> when it was started, as of the last message to it
        self._next_query = 0.0
        self._next_restart_check = 0.0

    def __contains__(self, client: int) -> bool:
        return client in self._homes

    def __getitem__(self, client: int) -> int:
        """The node on which a client lives."""
        return self._homes[client]

    def forget(self, client: int) -> None:
        """Drop a client's node; the client may come back on another one."""
        self._homes.pop(client, None)

    def identify(self, wanted: Iterable[int]) -> None:
        """Read the nodes' identities; query new nodes if the node of a wanted client is not known."""
        for message in self.pull(self._queries):
            node = self._queries.pop(message.metadata.reply_to_message_id, None)
            if node is not None:
                self._register(node, message)
        now = self.clock.monotonic()
        if now < self._next_query or all(client in self._homes for client in wanted):
            return
        self._next_query = now + max(self.terms.poll_seconds, self.terms.first_pause)
        known = {*self._homes.values(), *self.rejected, *self._queries.values()}
        due = [node for node in self._node_ids() if node not in known and self._retries.get(node, 0.0) <= now]
        queries = [Message(RecordDict(), node, "query") for node in due]
        sent = zip(self.push(queries), queries, strict=True)
        self._queries |= {name: query.metadata.dst_node_id for name, query in sent if name is not None}

    def _node_ids(self) -> list[int]:
        """The connected nodes; under `keys`, their owners become known."""
        nodes = list(self.grid.get_nodes())
        if self.keys is not None:
            self._owners |= {node.node_id: self.keys[node.public_key] for node in nodes if node.public_key in self.keys}
        return [node.node_id for node in nodes]

    def _register(self, node: int, message: Message) -> None:
        if message.has_error():
            self._fail(node, printable((message.error.reason or f"error {message.error.code}")[:500]))
            return
        try:
            client, disclosed = unpack_identity(message.content, self.clients), unpack_disclosed(message.content)
            self._check_key(node, client)
            if client in self._homes:
                raise PayloadError(f"it claims to be client {client}, which lives on node {self._homes[client]}")
        except (PayloadError, Refused) as error:
            self.rejected.add(node)
            _log.warning("node %d is refused: %s", node, " ".join(str(error).split()))
        else:
            self._homes[client] = node
            self.disclosed[client] = disclosed
            self._failures.pop(node, None)
            _log.info("client %d lives on node %d", client, node)

    def _fail(self, node: int, reason: str) -> None:
        """A node failed to say which client it is: ask again later, a limited number of times."""
        self._failures[node] += 1
        tries = self._failures[node]
        self._retries[node] = self.clock.monotonic() + self.terms.pause(tries)
        if tries < self.terms.identity_attempts:
            _log.warning("node %d did not identify itself: %s", node, reason)
            return
        self.rejected.add(node)
        _log.warning(
            "node %d is given up: it failed %d times to say which client it is (%s); restart its site",
            node,
            tries,
            reason,
        )

    def _check_key(self, node: int, client: int) -> None:
        """Refuse a node that claims to be another client than its key says."""
        if self.keys is None:
            return
        owner = self._owners.get(node)
        if owner is None:
            raise PayloadError(f"it claims to be client {client}, but its key belongs to no site; register it")
        if owner != client:
            reason = f"it claims to be client {client}, but has the key of client {owner}"
            self.false_claims[owner] = f"its node is refused: {reason}"
            raise PayloadError(reason)
        self.false_claims.pop(client, None)

    def push(self, requests: Sequence[Message]) -> list[str | None]:
        """Send messages and record their nodes' start times; returns their ids, None for those not accepted."""
        if not requests:
            return []
        asked = {request.metadata.dst_node_id for request in requests}
        self._started |= {node: start for node, start in self._starts().items() if node in asked}
        sent: list[str | None] = list(self.grid.push_messages(requests))
        return sent or [None] * len(requests)  # Flower's answer if together they are too large

    def pull(self, ids: Collection[str]) -> Iterable[Message]:
        """The replies that have arrived for messages with these ids."""
        return self.grid.pull_messages(list(ids)) if ids else ()

    def restarted(self, *, waiting: bool) -> set[int]:
        """The nodes restarted since the last message to them; checked only every few polls, and while `waiting`.

        A node that restarts before its absence is noticed never answers: it keeps messages in memory only.
        """
        now = self.clock.monotonic()
        if now < self._next_restart_check or not (waiting or self._queries or self.rejected):
            return set()
        self._next_restart_check = now + _RESTART_POLLS * self.terms.poll_seconds
        again = {node for node, start in self._starts().items() if start != self._started.get(node, start)}
        self._queries = {name: node for name, node in self._queries.items() if node not in again}
        self.rejected -= again  # the site may have corrected its file
        for node in again:
            self._failures.pop(node, None)
            self._retries.pop(node, None)
        for node in again & self._owners.keys():
            self.false_claims.pop(self._owners[node], None)
        return again

    def _starts(self) -> dict[int, str]:
        """When each connected node was started; empty strings in a simulation."""
        return {node.node_id: node.last_activated_at for node in self.grid.get_nodes()}
