"""One request to many clients, from sending it until all have answered or the deadline has passed."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from flwr.app import DEFAULT_TTL, Error, Message, RecordDict

from fedl2g import errors
from fedl2g.engines.base import Absent, Evaluation, Rejected
from fedl2g.engines.flower.identity import AWAKE, Refused
from fedl2g.engines.flower.messages import Kept
from fedl2g.engines.flower.nodes import Nodes
from fedl2g.engines.flower.records import unwrap, wrap
from fedl2g.engines.flower.strict import printable
from fedl2g.engines.flower.terms import BELOW_MINIMUM, Clock, Limits, Terms
from fedl2g.errors import PayloadError, RunError
from fedl2g.methods.base import Reply

_log = logging.getLogger(__name__)
_NODE_UNAVAILABLE = 5  # from flwr's ErrorCode, which is not public
_GRACE = 60.0  # seconds of a message's TTL beyond the deadline: the exchange, not Flower, decides what is late

UNKNOWN = "no node has identified itself as this client"
GONE = "its node is gone"
LATE = "it did not answer in time"
RESTARTED = "its node was restarted and has lost the request"

AnswerT = TypeVar("AnswerT", bound=Reply | Evaluation | Kept)


@dataclass(frozen=True)
class Question(Generic[AnswerT]):
    """The request sent to all clients, and how to read an answer.

    `read` raises PayloadError for an answer that cannot be used, and Refused for a node's refusal.
    """

    kind: Literal["train", "evaluate", "evaluate.keep"]
    round: int
    content: RecordDict
    read: Callable[[int, RecordDict], AnswerT]


class Exchange(Generic[AnswerT]):
    """Sends a question to clients, retries lost requests, and collects the answers.

    If `limits` says to skip a round with too few replies, answers are held back until there are enough: a skipped round
    uses none of them.
    """

    def __init__(
        self,
        question: Question[AnswerT],
        clients: Iterable[int],
        nodes: Nodes,
        terms: Terms,
        limits: Limits,
        clock: Clock = time,
    ) -> None:
        self.question = question
        self.nodes = nodes
        self.terms = terms
        self.limits = limits
        self.clock = clock
        self.due = dict.fromkeys(clients, 0.0)  # clients to ask -> not before this time
        self.asked: dict[str, int] = {}  # message id -> client
        self.reasons = dict.fromkeys(self.due, UNKNOWN)  # why a client has not answered yet
        self.failures: Counter[int] = Counter()
        self.unusable: dict[int, Absent] = {}  # clients whose answers cannot be used
        self.usable = 0
        self.deadline = clock.monotonic() + (limits.deadline_seconds or float("inf"))
        self._content = wrap(question.content)
        self._sent: dict[str, float] = {}  # message id -> when it was sent
        self._held: list[AnswerT] = []
        self._overdue = False

    @property
    def pending(self) -> bool:
        """Whether any answer is outstanding."""
        return bool(self.due or self.asked)

    @property
    def enough(self) -> bool:
        """Whether there are enough usable answers."""
        return self.usable >= self.limits.minimum

    def answers(self) -> Iterator[AnswerT | Absent]:
        """Yield each answer as it arrives; at the end, the clients without a usable answer, with the reasons."""
        while self.pending:
            self.nodes.identify(self.due)
            self.refuse_false_claims()
            self.send()
            self.retry_restarted()
            yield from self.collect()
            if self.is_over():
                break
            self.retry_unusable()
            if self.pending:
                self.clock.sleep(self.terms.poll_seconds)
        yield from self.close()

    def refuse_false_claims(self) -> None:
        """Count clients whose nodes claim to be others as refused: nobody waits for them."""
        for client in self.due.keys() & self.nodes.false_claims.keys():
            del self.due[client], self.reasons[client]
            self.unusable[client] = Rejected(client, self.nodes.false_claims[client])

    def send(self) -> None:
        """Send the request to clients that are due and whose nodes are known."""
        now = self.clock.monotonic()
        ready = [client for client, when in self.due.items() if when <= now and client in self.nodes]
        seconds = self.limits.deadline_seconds
        ttl = DEFAULT_TTL if seconds is None else seconds + _GRACE
        requests = [Message(self._content, self.nodes[client], self.question.kind, ttl=ttl) for client in ready]
        wake = self._wake_messages(ready)
        sent = self.nodes.push([*requests, *wake])
        self.nodes.wake_messages.update(name for name in sent[len(requests) :] if name is not None)
        for client, name in zip(ready, sent[: len(requests)], strict=True):
            if name is not None:
                self.asked[name] = client
                self._sent[name] = now
                del self.due[client]
                self.reasons[client] = LATE
            else:  # Flower no longer knows the node
                self.nodes.forget(client)
                self._schedule(client, self.terms.first_pause, GONE)

    def _wake_messages(self, clients: Sequence[int]) -> list[Message]:
        """Messages sent after the requests, which keep quick nodes awake for the next request."""
        if len(self.reasons) > self.terms.awake_nodes or self.question.kind == "evaluate.keep":
            return []  # at the end of a run no message may be in transit: a SuperNode would lose it (`MessageLost`)
        quick = [client for client in clients if client in self.nodes.quick]
        return [
            Message(RecordDict(), self.nodes[client], AWAKE, ttl=_GRACE)
            for _ in range(self.terms.awake)
            for client in quick
        ]

    def retry_restarted(self) -> None:
        """Retry clients whose nodes were restarted since the request was sent."""
        again = self.nodes.restarted(waiting=bool(self.asked))
        lost = {
            name: client for name, client in self.asked.items() if client in self.nodes and self.nodes[client] in again
        }
        for name, client in lost.items():
            del self.asked[name]
            self._warn_retry(client, RESTARTED)
            self._schedule(client, 0.0, RESTARTED)

    def collect(self) -> Iterator[AnswerT]:
        """Read the replies that have arrived, and yield the usable answers."""
        for message in self.nodes.pull([*self.asked, *self.nodes.wake_messages]):
            name = message.metadata.reply_to_message_id
            self.nodes.wake_messages.discard(name)
            client = self.asked.pop(name, None)
            if client is None:
                continue
            seconds = self.clock.monotonic() - self._sent.pop(name)
            (self.nodes.quick.add if seconds < self.terms.awake_seconds else self.nodes.quick.discard)(client)
            if message.has_error():
                self.fail(client, message.error)
            else:
                yield from self._take(client, message.content)

    def fail(self, client: int, error: Error) -> None:
        """Schedule a retry after an error reply; raises RunError after too many failures."""
        if error.code == _NODE_UNAVAILABLE:
            self.nodes.forget(client)
            reason = GONE
        else:
            reason = f"its node reports error {error.code}: {printable((error.reason or '')[:500])}"
        self._warn_retry(client, reason)
        self.failures[client] += 1
        if self.terms.attempts is not None and self.failures[client] >= self.terms.attempts:
            raise RunError(f"client {client}: failed {self.failures[client]} times in a row; {reason}")
        self._schedule(client, self.terms.pause(self.failures[client]), reason)

    def _take(self, client: int, records: RecordDict) -> Iterator[AnswerT]:
        """Read one answer; yield it and those held back so far, unless the round may still be skipped."""
        answer = self._read(client, records)
        del self.reasons[client]
        if isinstance(answer, Absent):
            self.unusable[client] = answer
            return
        self.usable += 1
        self._held.append(answer)
        if self.enough or self.limits.below_minimum != "skip":
            released, self._held = self._held, []
            yield from released

    def _read(self, client: int, records: RecordDict) -> AnswerT | Absent:
        """A client's answer, or the reason it cannot be used."""
        kind, round = self.question.kind, self.question.round
        try:
            return self.question.read(client, unwrap(records))
        except Refused as refusal:
            if self.terms.refusal_ends_run:
                raise error_of(refusal) from refusal
            reason = " ".join(str(refusal).split())  # on one line: a site must not forge lines of the log
            _log.warning("%s, round %d: client %d does not take part: %s", kind, round, client, reason)
            return Absent(client, f"the site does not take part: {reason}")
        except PayloadError as error:
            _log.warning("%s, round %d: the reply from client %d is refused: %s", kind, round, client, error)
            return Rejected(client, str(error))

    def is_over(self) -> bool:
        """Whether the deadline has passed and no further answers are awaited."""
        if self.clock.monotonic() < self.deadline:
            return False
        if self.enough or self.limits.below_minimum != "wait":
            return True
        if not self._overdue:
            _log.warning(
                "round %d: %d of %d replies at the deadline; waiting for more",
                *(self.question.round, self.usable, self.limits.minimum),
            )
        self._overdue = True
        return False

    def retry_unusable(self) -> None:
        """Retry unusable answers once all clients have answered but too few answers are usable."""
        if self.pending or self.enough or self.limits.below_minimum != "wait":
            return
        if not self.terms.retries:
            first = next(iter(self.unusable.values()))
            raise RunError(f"client {first.client}: {first.reason}")
        _log.warning(
            "round %d: all clients have answered, but only %d of %d replies can be used; retrying: %s",
            *(self.question.round, self.usable, self.limits.minimum),
            ", ".join(f"client {client}" for client in sorted(self.unusable)),
        )
        for client, answer in self.unusable.items():
            self.failures[client] += 1
            self._schedule(client, self.terms.pause(self.failures[client]), answer.reason)
        self.unusable.clear()

    def close(self) -> Iterator[Absent]:
        """Yield the clients without a usable answer; raises RunError if the settings say to stop with too few."""
        yield from self.unusable.values()
        round, minimum = self.question.round, self.limits.minimum
        missing = sorted(self.reasons.items())
        for client, reason in missing:
            _log.warning("%s, round %d: no answer from client %d: %s", self.question.kind, round, client, reason)
        if not self.enough:
            if self.limits.below_minimum == "stop":
                raise RunError(
                    f"round {round}: {self.usable} replies, but {minimum} are needed and {BELOW_MINIMUM} is 'stop'; "
                    "the last checkpoint is intact; resume when the sites are back"
                )
            _log.warning("round %d: %d replies, but %d are needed: the round is skipped", round, self.usable, minimum)
        yield from (Absent(client, reason) for client, reason in missing)
        skipped = f"the round is skipped: fewer than {minimum} replies"
        yield from (Absent(answer.client, skipped) for answer in self._held)

    def _schedule(self, client: int, pause: float, reason: str) -> None:
        self.due[client] = self.clock.monotonic() + pause
        self.reasons[client] = reason

    def _warn_retry(self, client: int, reason: str) -> None:
        kind, round = self.question.kind, self.question.round
        _log.warning("%s, round %d, client %d: %s; retrying", kind, round, client, reason)


def error_of(refusal: Refused) -> errors.FedL2GError:
    """The error on a node as an exception of this process."""
    kind = getattr(errors, refusal.kind, errors.FedL2GError)
    known = isinstance(kind, type) and issubclass(kind, errors.FedL2GError)
    return kind(str(refusal)) if known else errors.FedL2GError(str(refusal))
