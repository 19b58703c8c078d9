"""An engine over Flower's Grid: requests go to the nodes where clients live, replies are awaited and checked."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from flwr.app import DEFAULT_TTL, Message, RecordDict
from flwr.serverapp import Grid

from fedl2g import errors
from fedl2g.engines.base import Absence, Evaluation
from fedl2g.engines.flower import messages
from fedl2g.engines.flower.messages import Refused, Request
from fedl2g.errors import PayloadError, RunError
from fedl2g.methods.base import Reply
from fedl2g.methods.registry import get_method
from fedl2g.payload import Payload
from fedl2g.setup import Setup

_log = logging.getLogger(__name__)
_NODE_UNAVAILABLE = 5  # flwr's ErrorCode, which is not public
_MB = 2**20
_GRACE = 60.0  # seconds a message outlives the deadline: it is this engine that decides what came too late

Answer = TypeVar("Answer", Reply, Evaluation)
Kind = Literal["train", "evaluate"]


@dataclass(frozen=True)
class Patience:
    """How often the grid is looked at, and how a lost message is asked again."""

    poll_seconds: float
    first_pause: float  # before a failed request is sent again; doubled each time
    longest_pause: float = 30.0
    attempts: int | None = None  # a node that fails so often ends the run; None: it is tried until the deadline

    def pause(self, failures: int) -> float:
        """Seconds to wait after so many failures."""
        return min(self.longest_pause, self.first_pause * 2.0 ** min(failures - 1, 16))


class GridEngine:
    """Reaches each client on its node; which node that is, it learns by asking them."""

    def __init__(self, grid: Grid, setup: Setup, run: str, patience: Patience) -> None:
        self.grid = grid
        self.setup = setup
        self.run = run
        self.patience = patience
        client = get_method(setup.experiment.method.name).client
        self.predicts_with_broadcast = client.predicts_with_broadcast
        self.moves_by_steps_alone = client.moves_by_steps_alone
        self.round = 0  # the last one that was trained
        self.refused: Counter[str] = Counter()  # what was refused in this process, by kind
        self._nodes: dict[int, int] = {}  # client -> node
        self._strangers: set[int] = set()  # nodes that hold no client of ours
        self._introductions: dict[str, int] = {}  # message id -> node that was asked who it is
        self._started: dict[int, str] = {}  # node -> when it was started, as of the last message to it
        self._next_look = 0.0
        self._next_count = 0.0
        self.refused_evaluations: dict[int, str] = {}  # of the last evaluation, and why
        self._unmoved: dict[int, Evaluation] = {}  # of clients that have not trained since

    def train(self, round: int, participants: Sequence[int], payload: Payload) -> Iterator[Reply | Absence]:
        replies = self.setup.experiment.replies
        known = {client: self._unmoved.pop(client, None) for client in participants}
        limit = int(replies.maximum_mb * _MB)

        def read(client: int, records: RecordDict) -> Reply:
            reply = messages.unpack_reply(records, client=client, run=self.run, round=round, limit=limit)
            self._judge(reply)
            before = known.get(client)
            if reply.report.steps or not self.moves_by_steps_alone:
                self._moves(client)
            elif before is not None:
                self._unmoved[client] = before
            return reply

        minimum = min(replies.minimum, len(participants))
        yield from self._exchange("train", participants, self._request(round, payload), read, minimum)
        self.round = round

    def evaluate(self, clients: Sequence[int], payload: Payload) -> list[Evaluation]:
        asked = [client for client in clients if self.predicts_with_broadcast or client not in self._unmoved]
        request = self._request(self.round, payload if self.predicts_with_broadcast else {})

        def read(client: int, records: RecordDict) -> Evaluation:
            return messages.unpack_evaluation(records, client=client, run=self.run, round=request.round)

        self.refused_evaluations.clear()
        for answer in self._exchange("evaluate", asked, request, read, 0):
            if isinstance(answer, Evaluation):
                self._unmoved[answer.client] = answer
            elif answer.refused:
                self.refused_evaluations[answer.client] = answer.reason
        found = [self._unmoved[client] for client in clients if client in self._unmoved]
        if self.predicts_with_broadcast:
            self._unmoved.clear()
        return found

    def revive(self) -> None:
        """Nothing to replace: nodes come back by themselves, and their clients are on their disks."""

    def forget(self) -> None:
        """Forget what is known of the clients' models, which were brought to another state."""
        self._unmoved.clear()

    def _judge(self, reply: Reply) -> None:
        """Refuse a reply that cannot be used, where that matters before the round is over."""

    def _moves(self, client: int) -> None:
        """A client is no longer as it was."""

    def _request(self, round: int, payload: Payload) -> Request:
        task = self.setup.task
        return Request(
            self.run, self.setup.experiment, self.setup.dataset.class_names, task.image_shape, round, payload
        )

    def _exchange(
        self,
        kind: Kind,
        clients: Iterable[int],
        request: Request,
        read: Callable[[int, RecordDict], Answer],
        minimum: int,
    ) -> Iterator[Answer | Absence]:
        """Ask the clients and yield each answer as it comes, until all have answered or the deadline has passed.

        With `below_minimum = skip` answers are held back until there are enough: a skipped round uses none of them.
        """
        replies = self.setup.experiment.replies
        content = messages.pack_request(request)
        due = dict.fromkeys(clients, 0.0)  # clients to be asked, and from when on
        asked: dict[str, int] = {}  # message id -> client
        reasons = dict.fromkeys(due, "no node has introduced itself as this client")
        failures: Counter[int] = Counter()
        absent: dict[int, Absence] = {}  # who answered, but with nothing that can be used
        held: list[Answer] = []
        good = 0
        deadline = time.monotonic() + (replies.deadline_seconds or float("inf"))
        late = False
        while due or asked:
            self._meet(bool(due.keys() - self._nodes.keys()))
            self._send(kind, content, due, asked, reasons)
            for lost in self._forgotten(asked):
                reasons[lost] = "its node was started again and has forgotten the request"
                _log.warning("%s, round %d, client %d: %s; asking again", kind, request.round, lost, reasons[lost])
                due[lost] = time.monotonic()
            for message in self.grid.pull_messages(list(asked)) if asked else ():
                client = asked.pop(message.metadata.reply_to_message_id, None)
                if client is None:
                    continue
                if message.has_error():
                    reasons[client] = self._failed(kind, request, client, message)
                    failures[client] += 1
                    if self.patience.attempts is not None and failures[client] >= self.patience.attempts:
                        raise RunError(f"client {client} failed {failures[client]} times in a row; {reasons[client]}")
                    due[client] = time.monotonic() + self.patience.pause(failures[client])
                    continue
                reasons.pop(client)
                answer = self._read(kind, request, client, message, read)
                if isinstance(answer, Absence):
                    absent[client] = answer
                    continue
                good += 1
                held.append(answer)
                if good >= minimum or replies.below_minimum != "skip":
                    yield from held
                    held.clear()
            if time.monotonic() >= deadline:
                if good >= minimum or replies.below_minimum != "wait":
                    break
                if not late:
                    _log.warning(
                        "round %d: %d of %d replies at the deadline; waiting for more", request.round, good, minimum
                    )
                late = True
            if not due and not asked and good < minimum and replies.below_minimum == "wait":
                self._before_asking_again(absent.values())
                _log.warning(
                    "round %d: all have answered, but only %d of %d replies can be used; asking again: %s",
                    *(request.round, good, minimum, ", ".join(f"client {client}" for client in sorted(absent))),
                )
                failures.update(absent.keys())
                for answered, absence in absent.items():
                    due[answered] = time.monotonic() + self.patience.pause(failures[answered])
                    reasons[answered] = absence.reason
                absent.clear()
            if due or asked:
                time.sleep(self.patience.poll_seconds)
        yield from absent.values()
        yield from self._close_round(kind, request.round, reasons, [answer.client for answer in held], good, minimum)

    def _read(
        self,
        kind: Kind,
        request: Request,
        client: int,
        message: Message,
        read: Callable[[int, RecordDict], Answer],
    ) -> Answer | Absence:
        """A client's answer, or why it cannot be used."""
        try:
            return read(client, message.content)
        except Refused as refusal:
            return self._refusal(kind, request, client, refusal)
        except PayloadError as error:
            self.refused["reply"] += 1
            _log.warning("%s, round %d: the reply of client %d is refused: %s", kind, request.round, client, error)
            return Absence(client, str(error), refused=True)

    def _close_round(
        self, kind: Kind, round: int, reasons: dict[int, str], held: list[int], good: int, minimum: int
    ) -> Iterator[Absence]:
        policy = self.setup.experiment.replies.below_minimum
        for client, reason in sorted(reasons.items()):
            _log.warning("%s, round %d: no answer of client %d: %s", kind, round, client, reason)
        if good < minimum and policy == "stop":
            raise RunError(
                f"round {round}: {good} replies, but {minimum} are needed and replies.below_minimum is 'stop'; the "
                "last checkpoint is intact: resume when the sites are back"
            )
        if good < minimum:
            _log.warning("round %d: %d replies, but %d are needed: the round is skipped", round, good, minimum)
        yield from (Absence(client, reason) for client, reason in sorted(reasons.items()))
        yield from (Absence(client, f"the round is skipped: fewer than {minimum} replies") for client in held)

    def _failed(self, kind: Kind, request: Request, client: int, message: Message) -> str:
        """A request came back as an error: what happened, in words."""
        if message.error.code == _NODE_UNAVAILABLE:
            self._nodes.pop(client, None)  # it may come back as another node
            reason = "its node is gone"
        else:
            reason = f"its node reports error {message.error.code}: {(message.error.reason or '')[:500]}"
        _log.warning("%s, round %d, client %d: %s; asking again", kind, request.round, client, reason)
        return reason

    def _before_asking_again(self, absences: Iterable[Absence]) -> None:
        """Too few answers can be used, and all have answered: raise if asking again is in vain."""

    def _refusal(self, kind: Kind, request: Request, client: int, refusal: Refused) -> Absence:
        """A node said why it did not do what it was asked."""
        _log.warning("%s, round %d: client %d does not take part: %s", kind, request.round, client, refusal)
        return Absence(client, f"the setup does not take part: {refusal}")

    def _send(
        self, kind: Kind, content: RecordDict, due: dict[int, float], asked: dict[str, int], reasons: dict[int, str]
    ) -> None:
        """Ask the clients that are due and whose nodes are known."""
        now = time.monotonic()
        ready = [client for client, when in due.items() if when <= now and client in self._nodes]
        if not ready:
            return
        deadline = self.setup.experiment.replies.deadline_seconds
        ttl = DEFAULT_TTL if deadline is None else deadline + _GRACE
        letters = [Message(content, self._nodes[client], kind, ttl=ttl) for client in ready]
        sent = self._push(letters)
        for client, letter in zip(ready, letters, strict=True):
            if letter.metadata.message_id in sent:
                asked[letter.metadata.message_id] = client
                del due[client]
                reasons[client] = "it did not answer in time"
            else:
                self._nodes.pop(client)  # the node is not known to Flower any more
                due[client] = now + self.patience.first_pause
                reasons[client] = "its node is gone"

    def _meet(self, looking: bool) -> None:
        """Learn which client lives on which node: ask nodes that have not been asked, read what they said."""
        if self._introductions:
            for message in self.grid.pull_messages(list(self._introductions)):
                node = self._introductions.pop(message.metadata.reply_to_message_id, None)
                if node is not None:
                    self._introduce(node, message)
        now = time.monotonic()
        if not looking or now < self._next_look:
            return
        self._next_look = now + max(self.patience.poll_seconds, self.patience.first_pause)
        known = {*self._nodes.values(), *self._strangers, *self._introductions.values()}
        letters = [Message(RecordDict(), node, "query") for node in self.grid.get_node_ids() if node not in known]
        sent = self._push(letters) if letters else set()
        for letter in letters:
            if letter.metadata.message_id in sent:
                self._introductions[letter.metadata.message_id] = letter.metadata.dst_node_id

    def _push(self, letters: list[Message]) -> set[str]:
        """Send messages, and note since when their nodes have been up."""
        self._started |= self._starts()
        return set(self.grid.push_messages(letters))

    def _starts(self) -> dict[int, str]:
        """When each node that is up was started; empty texts in a simulation."""
        return {node.node_id: node.last_activated_at for node in self.grid.get_nodes()}

    def _forgotten(self, asked: dict[str, int]) -> list[int]:
        """Clients whose nodes were started again since they were asked; their messages are taken back.

        A node that is back before its absence was noticed would never answer: it keeps messages in memory.
        """
        now = time.monotonic()
        if now < self._next_count or not (asked or self._introductions):
            return []
        self._next_count = now + 20 * self.patience.poll_seconds
        starts = self._starts()
        again = {node for node, start in starts.items() if start != self._started.get(node, start)}
        for name in [name for name, node in self._introductions.items() if node in again]:
            del self._introductions[name]
        lost = {name: client for name, client in asked.items() if self._nodes.get(client) in again}
        for name in lost:
            del asked[name]
        return list(lost.values())

    def _introduce(self, node: int, message: Message) -> None:
        if message.has_error():
            _log.warning("node %d did not say who it is: %s", node, (message.error.reason or "")[:500])
            return
        try:
            client = messages.unpack_identity(message.content, self.setup.experiment.clients)
            if client in self._nodes:
                raise PayloadError(f"it claims to be client {client}, who lives on node {self._nodes[client]}")
        except (PayloadError, Refused) as error:
            self.refused["node"] += 1
            self._strangers.add(node)
            _log.warning("node %d is refused: %s", node, error)
        else:
            self._nodes[client] = node
            _log.info("client %d lives on node %d", client, node)


def error_of(refusal: Refused) -> errors.FedL2GError:
    """The error that a node met, as an error of this process."""
    kind = getattr(errors, refusal.kind, errors.FedL2GError)
    known = isinstance(kind, type) and issubclass(kind, errors.FedL2GError)
    return kind(str(refusal)) if known else errors.FedL2GError(str(refusal))
