"""Simulated availability: drop-out, slow clients, absences and late joiners, identical on every engine.

Time is simulated: the typical client needs 1, client i in round t needs exp(spread * a_i + jitter * b_it) with a, b
standard normal. A client that needs n deadlines is busy until the round t + n - 1, in which its reply arrives.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter
from torch import Tensor

from fedl2g import rng
from fedl2g.engines.base import Absent, Answer
from fedl2g.experiment.policies import Availability as Settings
from fedl2g.methods.base import Reply, Report
from fedl2g.payload import Payload
from fedl2g.round.absence import AWAY, BUSY, DROPPED, LATE, LOST, NOT_JOINED
from fedl2g.round.policy import Policy, State
from fedl2g.round.record import RoundRecord


@dataclass(frozen=True)
class Outcome:
    """What happens to a client that is asked to train in a round."""

    trains: bool
    reason: str = ""  # why its reply misses this round; "" when it arrives in time
    delay: int = 0  # rounds by which the reply is late


class Availability(Policy):
    """Filters participants by simulated availability and delays their replies.

    Everything is derived from the seed. Its state is the busy clients and the replies in transit.
    """

    def __init__(self, settings: Settings, clients: int, seed: int) -> None:
        self.settings = settings
        self.clients = clients
        self.on = settings != Settings()
        self._schedule = Schedule(settings, clients, seed)
        self._late: list[LateReply] = []
        self._outcomes: dict[int, Outcome] = {}  # of the participants that train in this round
        self._away: dict[int, str] = {}
        self._missing: dict[int, str] = {}
        self._arrived: dict[int, int] = {}  # client -> the round that its late reply belongs to

    def admit(self, round: int, plan: Sequence[int]) -> list[int]:
        """The planned participants that train in this round."""
        self._outcomes, self._missing, self._arrived = {}, {}, {}
        self._away = self._schedule.unavailable(round)
        for client in plan:
            reason = self._away.get(client)
            outcome = self._schedule.outcome(client, round) if reason is None else Outcome(trains=False, reason=reason)
            if outcome.trains:
                self._outcomes[client] = outcome
            if outcome.reason:
                self._missing[client] = self._away[client] = outcome.reason
            if outcome.delay:
                self._schedule.busy[client] = round + outcome.delay
        return list(self._outcomes)

    def deliver(self, round: int, answers: Iterable[Answer]) -> Iterator[Answer]:
        """The answers that reach the server in this round: first those on time, then late replies of earlier rounds."""
        for answer in answers:
            outcome = self._outcomes[answer.client]
            if not outcome.reason or not isinstance(answer, Reply):
                yield answer
                continue
            yield Absent(answer.client, outcome.reason, answer.report)
            if self._schedule.uses(outcome):
                # Its training time is already counted in this round.
                report = replace(answer.report, seconds=0.0, laps={})
                reply = replace(answer, report=report, weight=self._schedule.weight(outcome.delay))
                self._late.append(LateReply(round + outcome.delay, round, reply))
        due = [late for late in self._late if late.arrives <= round]
        self._late = [late for late in self._late if late.arrives > round]
        for late in sorted(due, key=lambda late: late.reply.client):
            self._arrived[late.reply.client] = late.asked
            yield late.reply

    def write(self, record: RoundRecord, asked: Sequence[int]) -> None:
        record.away = self._away
        record.missing = {**self._missing, **record.missing}
        record.late = {client: asked for client, asked in self._arrived.items() if client not in record.refused}

    def state_dict(self) -> State:
        tensors = {
            f"late.{number}.{name}": tensor
            for number, late in enumerate(self._late)
            for name, tensor in late.reply.payload.items()
        }
        return tensors, {"busy": list(self._schedule.busy.items()), "late": [late.to_dict() for late in self._late]}

    def load_state_dict(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        payloads: list[Payload] = [{} for _ in values["late"]]
        for name, tensor in tensors.items():
            _, number, entry = name.split(".", 2)
            payloads[int(number)][entry] = tensor
        late = [LateReply.from_dict(v, p, self.clients) for v, p in zip(values["late"], payloads, strict=True)]
        busy = {int(client): int(until) for client, until in values["busy"]}
        self._late, self._schedule.busy = late, busy
        self._outcomes, self._away, self._missing, self._arrived = {}, {}, {}, {}


@dataclass(frozen=True)
class LateReply:
    """A reply in transit: trained in round `asked`, delivered in round `arrives`."""

    arrives: int
    asked: int
    reply: Reply

    def to_dict(self) -> dict[str, Any]:
        """All fields except the payload, for a checkpoint."""
        r = self.reply
        return {
            "arrives": self.arrives,
            "asked": self.asked,
            "client": r.client,
            "weight": r.weight,
            "report": asdict(r.report),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any], payload: Payload, clients: int) -> LateReply:
        """Inverse of `to_dict`; ValueError if the values are malformed."""
        numbers = [values[name] for name in ("client", "arrives", "asked")]
        if any(type(number) is not int for number in numbers):
            raise ValueError(f"late reply: client, arrives and asked are {numbers}; expected integers")
        if not 0 <= values["client"] < clients or not 0 < values["asked"] < values["arrives"]:
            raise ValueError(f"late reply: client, arrives and asked are {numbers}; out of range")
        if type(values["weight"]) is not float or not 0 < values["weight"] <= 1:
            raise ValueError(f"late reply: weight is {values['weight']}; expected a number above 0 and at most 1")
        report = TypeAdapter(Report).validate_json(json.dumps(values["report"]), strict=True)
        return cls(values["arrives"], values["asked"], Reply(values["client"], payload, report, values["weight"]))


class Schedule:
    """Derives from the seed what happens to each client; keeps track of the busy ones."""

    def __init__(self, settings: Settings, clients: int, seed: int) -> None:
        self.settings = settings
        self.clients = clients
        self.seed = seed
        self.on = settings != Settings()
        self.busy: dict[int, int] = {}  # client -> the last round in which it is busy
        self._joins = self._drawn_joins()
        self._unstable = self._share(settings.unstable_share, "unstable") if self.on else frozenset()
        self._absences: dict[int, _Absences] = {}

    def unavailable(self, round: int) -> dict[int, str]:
        """The clients that cannot be asked in a round, and why."""
        if not self.on:
            return {}
        found = {client: self._reason(client, round) for client in range(self.clients)}
        return {client: reason for client, reason in found.items() if reason}

    def _reason(self, client: int, round: int) -> str:
        if round < self._joins.get(client, 1):
            return NOT_JOINED
        if self.settings.leave and self._absent(client, round):
            return AWAY
        return BUSY if round <= self.busy.get(client, 0) else ""

    def outcome(self, client: int, round: int) -> Outcome:
        """What happens to an available client that is asked to train."""
        if not self.on:
            return Outcome(trains=True)
        stream = rng.numpy_stream(self.seed, "dropout", client, round)
        before, after = stream.random(2)
        if client in self._unstable and before < self.settings.dropout_before:
            return Outcome(trains=False, reason=DROPPED)
        delay = self._delay(client, round)
        if client in self._unstable and after < self.settings.dropout_after:
            return Outcome(trains=True, reason=LOST, delay=delay)
        if delay:
            return Outcome(trains=True, reason=f"{LATE} by {delay} round{'s' if delay > 1 else ''}", delay=delay)
        return Outcome(trains=True)

    def weight(self, delay: int) -> float:
        """The weight of a reply that arrives `delay` rounds late."""
        return float((1 + delay) ** -self.settings.staleness_power)

    def uses(self, outcome: Outcome) -> bool:
        """Whether a late reply will be used when it arrives."""
        late = outcome.reason.startswith(LATE)
        return late and self.settings.late == "use" and outcome.delay <= self.settings.maximum_delay

    def _delay(self, client: int, round: int) -> int:
        if self.settings.deadline is None:
            return 0
        own = rng.numpy_stream(self.seed, "speed", client).standard_normal()
        now = rng.numpy_stream(self.seed, "speed", client, round).standard_normal()
        time = math.exp(self.settings.speed_spread * own + self.settings.speed_jitter * now)
        return max(0, math.ceil(time / self.settings.deadline - 1e-9) - 1)

    def _absent(self, client: int, round: int) -> bool:
        if client not in self._absences:
            self._absences[client] = _Absences(self.seed, client, self.settings.leave, self.settings.absence_rounds)
        return self._absences[client].covers(round)

    def _share(self, share: float, purpose: str) -> frozenset[int]:
        count = int(share * self.clients + 0.5)
        return frozenset(rng.numpy_stream(self.seed, purpose).permutation(self.clients)[:count].tolist())

    def _drawn_joins(self) -> dict[int, int]:
        late = sorted(self._share(self.settings.join_share, "joiners")) if self.settings.join_share else []
        rounds = rng.numpy_stream(self.seed, "join").integers(2, self.settings.join_until + 1, size=len(late))
        return dict(zip(late, rounds.tolist(), strict=True))


@dataclass
class _Absences:
    """The rounds in which one client is away, computed lazily."""

    seed: int
    client: int
    leave: float
    length: int
    known: int = 0  # rounds decided so far
    until: int = 0  # the last round of the latest absence
    away: set[int] = field(default_factory=set)

    def covers(self, round: int) -> bool:
        while self.known < round:
            self.known += 1
            if self.known <= self.until:
                self.away.add(self.known)
            elif rng.numpy_stream(self.seed, "leave", self.client, self.known).random() < self.leave:
                self.until = self.known + self.length - 1
                self.away.add(self.known)
        return round in self.away
