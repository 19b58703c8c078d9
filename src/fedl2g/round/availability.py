"""Who is there when: simulated drop-out, slow clients, absences and late joiners, the same on every engine.

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
class Fate:
    """What happens to a client that is asked to train in a round."""

    trains: bool
    reason: str = ""  # why its reply does not arrive in this round; "" when it does
    delay: int = 0  # rounds by which the reply is late


class Availability(Policy):
    """Lets the clients train that are there, and delivers their replies when they arrive.

    Every choice follows from the seed. It remembers who is busy, and the replies that are on their way.
    """

    def __init__(self, settings: Settings, clients: int, seed: int) -> None:
        self.settings = settings
        self.clients = clients
        self.on = settings != Settings()
        self._schedule = Schedule(settings, clients, seed)
        self._late: list[LateReply] = []
        self._fates: dict[int, Fate] = {}  # of this round's participants that train
        self._away: dict[int, str] = {}
        self._missing: dict[int, str] = {}
        self._arrived: dict[int, int] = {}  # client -> the round that its late reply belongs to

    def admit(self, round: int, plan: Sequence[int]) -> list[int]:
        """Those of the planned participants that train in this round."""
        self._fates, self._missing, self._arrived = {}, {}, {}
        self._away = self._schedule.whereabouts(round)
        for client in plan:
            reason = self._away.get(client)
            fate = self._schedule.fate(client, round) if reason is None else Fate(trains=False, reason=reason)
            if fate.trains:
                self._fates[client] = fate
            if fate.reason:
                self._missing[client] = self._away[client] = fate.reason
            if fate.delay:
                self._schedule.busy[client] = round + fate.delay
        return list(self._fates)

    def deliver(self, round: int, answers: Iterable[Answer]) -> Iterator[Answer]:
        """What reaches the server in this round: replies on time, then those of earlier rounds that arrive now."""
        for answer in answers:
            fate = self._fates[answer.client]
            if not fate.reason or not isinstance(answer, Reply):
                yield answer
                continue
            yield Absent(answer.client, fate.reason, answer.report)
            if self._schedule.uses(fate):
                # Its time counts in this round, in which it trained.
                report = replace(answer.report, seconds=0.0, laps={})
                reply = replace(answer, report=report, weight=self._schedule.weight(fate.delay))
                self._late.append(LateReply(round + fate.delay, round, reply))
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
        self._fates, self._away, self._missing, self._arrived = {}, {}, {}, {}


@dataclass(frozen=True)
class LateReply:
    """A reply that is on its way."""

    arrives: int
    asked: int
    reply: Reply

    def to_dict(self) -> dict[str, Any]:
        """Everything but the payload, for a checkpoint."""
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
        """Read `to_dict` back; ValueError if it is none."""
        whole = [values[name] for name in ("client", "arrives", "asked")]
        if any(type(number) is not int for number in whole):
            raise ValueError(f"a late reply with the numbers {whole}")
        if not 0 <= values["client"] < clients or not 0 < values["asked"] < values["arrives"]:
            raise ValueError(f"a late reply with the numbers {whole}")
        if type(values["weight"]) is not float or not 0 < values["weight"] <= 1:
            raise ValueError(f"a late reply of weight {values['weight']}")
        report = TypeAdapter(Report).validate_json(json.dumps(values["report"]), strict=True)
        return cls(values["arrives"], values["asked"], Reply(values["client"], payload, report, values["weight"]))


class Schedule:
    """Decides each client's fate from the seed; remembers who is busy."""

    def __init__(self, settings: Settings, clients: int, seed: int) -> None:
        self.settings = settings
        self.clients = clients
        self.seed = seed
        self.on = settings != Settings()
        self.busy: dict[int, int] = {}  # client -> the round in which it is done
        self._joins = self._drawn_joins()
        self._unstable = self._share(settings.unstable_share, "unstable") if self.on else frozenset()
        self._absences: dict[int, _Absences] = {}

    def whereabouts(self, round: int) -> dict[int, str]:
        """The clients that cannot be asked in a round, and why."""
        if not self.on:
            return {}
        found = {client: self._where(client, round) for client in range(self.clients)}
        return {client: reason for client, reason in found.items() if reason}

    def _where(self, client: int, round: int) -> str:
        if round < self._joins.get(client, 1):
            return NOT_JOINED
        if self.settings.leave and self._absent(client, round):
            return AWAY
        return BUSY if round <= self.busy.get(client, 0) else ""

    def fate(self, client: int, round: int) -> Fate:
        """What becomes of a client that is there and asked."""
        if not self.on:
            return Fate(trains=True)
        stream = rng.numpy_stream(self.seed, "dropout", client, round)
        before, after = stream.random(2)
        if client in self._unstable and before < self.settings.dropout_before:
            return Fate(trains=False, reason=DROPPED)
        delay = self._delay(client, round)
        if client in self._unstable and after < self.settings.dropout_after:
            return Fate(trains=True, reason=LOST, delay=delay)
        if delay:
            return Fate(trains=True, reason=f"{LATE} by {delay} round{'s' if delay > 1 else ''}", delay=delay)
        return Fate(trains=True)

    def weight(self, delay: int) -> float:
        """What a reply counts that comes so many rounds late."""
        return float((1 + delay) ** -self.settings.staleness_power)

    def uses(self, fate: Fate) -> bool:
        """Whether a late reply is waited for."""
        late = fate.reason.startswith(LATE)
        return late and self.settings.late == "use" and fate.delay <= self.settings.maximum_delay

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
    """The rounds in which one client is away, found as far as they are asked for."""

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
