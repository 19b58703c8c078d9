"""The round loop: sample, train, check what came back, aggregate, evaluate, record. Knows no method, engine or file."""

from __future__ import annotations

import json
import logging
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from pydantic import TypeAdapter
from torch import Tensor

from fedl2g import rng
from fedl2g.engines.base import Absence, Engine, Evaluation, Selective
from fedl2g.errors import Diverged, PayloadError
from fedl2g.learning.profiling import split_round
from fedl2g.methods.base import Reply, Report, ServerHalf
from fedl2g.payload import Payload, nbytes
from fedl2g.round.availability import Fate, Schedule
from fedl2g.round.record import Accuracy, RoundRecord
from fedl2g.uploads.attack import hostile_clients
from fedl2g.uploads.mechanism import sparse

if TYPE_CHECKING:
    from fedl2g.experiment import Experiment


_log = logging.getLogger(__name__)
_LOSS_LIMIT = 1e30  # the sum of many clients' losses must stay a number
_LATE = "late/"  # prefix of late replies' tensors in a checkpoint


class Observer:
    """Follows a federation: progress, records, checkpoints, early stop, trackers."""

    def on_start(self, federation: Federation) -> None:
        """The loop is about to start, or to go on after an interruption."""

    def on_round(self, federation: Federation, record: RoundRecord) -> None:
        """A round is over; `federation.stop(reason)` ends the run after it."""

    def on_end(self, federation: Federation) -> None:
        """The loop is over (not called when it was interrupted by an error)."""


class Federation:
    """Clients behind an engine, a server, and the rounds between them."""

    def __init__(
        self, experiment: Experiment, server: ServerHalf[Any], engine: Engine, observers: Sequence[Observer] = ()
    ) -> None:
        self.experiment = experiment
        self.server = server
        self.engine = engine
        self.observers = observers
        self.history: list[RoundRecord] = []
        self.stop_reason: str | None = None
        self.hostile = hostile_clients(experiment.attack, experiment.clients, experiment.seed)
        self.protection = server.task.protection
        self.schedule = Schedule(experiment.availability, experiment.clients, experiment.seed)
        if isinstance(engine, Selective):
            engine.check = self._check
        self._late: list[_Late] = []
        self._sent: tuple[int, Payload] | None = None
        self._start = _copy(server.state_dict())
        self._spent: list[tuple[float, dict[str, float]]] = []  # of the round's clients: seconds, and where they went
        self._started = 0.0  # when the round did

    @property
    def round(self) -> int:
        """The last round that is over; 0 before the first."""
        return self.history[-1].round if self.history else 0

    def stop(self, reason: str) -> None:
        """End the run after the current round."""
        self.stop_reason = self.stop_reason or reason

    def run(self) -> None:
        """Run to the last round, from wherever the federation is."""
        if self.protection is not None and self.protection.on:
            self.protection.epsilon(1, 1)  # whatever the accountant lacks is said now, not after the first round
        self._tell(lambda observer: observer.on_start(self))
        if not self.history:
            self._finish(RoundRecord(0), evaluate=True)
        while self.round < self.experiment.rounds and self.stop_reason is None:
            if self._overspends(self.round + 1):
                self.stop("the privacy budget is spent")
                break
            self._play(self.round + 1)
        self._tell(lambda observer: observer.on_end(self))

    def participants(self, round: int) -> list[int]:
        """The clients that train in a round: drawn without replacement from a stream of its own.

        Under differential privacy each client is drawn by itself: the number varies.
        """
        if self.protection is not None and self.protection.on:
            return self.protection.participants(round)
        count = self.experiment.participants_per_round
        stream = rng.numpy_stream(self.experiment.seed, "participants", round)
        return sorted(stream.choice(self.experiment.clients, size=count, replace=False).tolist())

    def evaluated(self, round: int) -> Sequence[int]:
        """The clients that are evaluated after a round: all, or a sample from a stream of its own."""
        clients, count = self.experiment.clients, self.experiment.evaluated_per_round
        if count == clients:
            return range(clients)
        stream = rng.numpy_stream(self.experiment.seed, "evaluated", round)
        return sorted(stream.choice(clients, size=count, replace=False).tolist())

    def _play(self, round: int) -> None:
        record = RoundRecord(round, self.participants(round))
        started = self._started = time.perf_counter()
        broadcast = self._broadcast(round)
        record.server_seconds = time.perf_counter() - started
        fates = self._fates(record)
        record.hostile = [client for client in fates if client in self.hostile]
        record.down_bytes = nbytes(broadcast) * len(fates)
        accepted = []
        for answer in self._train(round, list(fates), broadcast):
            if isinstance(answer, Absence):
                (record.refused if answer.refused else record.missing)[answer.client] = answer.reason
            elif fates[answer.client].reason:
                self._miss(answer, fates[answer.client], record)
            elif self._accept(answer, record):
                accepted.append(answer)
        accepted += self._arrivals(record)
        if not accepted and self._hopeless(record):
            raise Diverged(f"round {round}: no reply could be used ({next(iter(record.refused.values()))})")
        accepted.sort(key=lambda reply: reply.client)  # sums of floats depend on the order
        started = time.perf_counter()
        if accepted or self._noise_alone:
            self.server.aggregate(round, [self._sparse(reply) for reply in accepted])
        record.server_seconds += time.perf_counter() - started
        record.server = self.server.metrics()
        record.privacy = self._spent_privacy(record)
        losses = {reply.client: reply.report.loss for reply in accepted if reply.report.loss is not None}
        record.client_losses = losses
        record.loss = statistics.fmean(losses.values()) if losses else None
        self._finish(record, evaluate=round % self.experiment.evaluate_every == 0 or round == self.experiment.rounds)

    def _train(self, round: int, clients: list[int], broadcast: Payload) -> Iterator[Reply | Absence]:
        """The engine's answers; what they took is noted for the profile."""
        self._spent.clear()
        for answer in self.engine.train(round, clients, broadcast):
            if isinstance(answer, Reply):
                self._spent.append((answer.report.seconds, answer.report.laps))
            yield answer

    @property
    def _noise_alone(self) -> bool:
        """Whether the server adds noise even where nobody replied: that nobody did is private too."""
        protection = self.protection
        return protection is not None and protection.on and protection.settings.noise == "server"

    def _hopeless(self, record: RoundRecord) -> bool:
        """Whether the replies of a round without a usable one say that training has diverged.

        One broken client says so only if the round before ended like this too. A deployed federation asks again, or
        does what its settings say; and under the guarantee a stop would tell of private data.
        """
        if isinstance(self.engine, Selective) or self._noise_alone or not record.refused:
            return False
        before = self.history[-1]
        return len(record.refused) > 1 or (
            bool(before.refused) and before.refused.keys() | before.missing.keys() >= set(before.participants)
        )

    def _sparse(self, reply: Reply) -> Reply:
        """A dense upload without guarantee becomes the class vectors that the client has."""
        if self.protection is None or self.protection.on or "present" not in reply.payload:
            return reply
        return replace(reply, payload=sparse(reply.payload))

    def _spent_privacy(self, record: RoundRecord) -> dict[str, float]:
        protection = self.protection
        if protection is None or not protection.on:
            return {}
        nothing = self.server.uploads == "nothing"
        most = Counter(c for r in (*self.history, record) for c in r.participants).most_common(1)
        return {
            "epsilon": 0.0 if nothing else protection.epsilon(record.round, most[0][1] if most else 0),
            "delta": protection.settings.delta,
            "noise_multiplier": protection.noise_multiplier,
        }

    def _overspends(self, round: int) -> bool:
        """Whether a round would take the spent epsilon above the limit."""
        limit = self.protection.settings.max_epsilon if self.protection is not None else None
        if limit is None:
            return False
        return self._spent_privacy(RoundRecord(round, self.participants(round)))["epsilon"] > limit

    def _fates(self, record: RoundRecord) -> dict[int, Fate]:
        """The participants that train in this round and what becomes of their replies; the others are recorded."""
        record.away = self.schedule.whereabouts(record.round)
        fates = {}
        for client in record.participants:
            reason = record.away.get(client)
            fate = self.schedule.fate(client, record.round) if reason is None else Fate(trains=False, reason=reason)
            if fate.trains:
                fates[client] = fate
            if fate.reason:
                record.missing[client] = record.away[client] = fate.reason
            if fate.delay:
                self.schedule.busy[client] = record.round + fate.delay
        return fates

    def _miss(self, reply: Reply, fate: Fate, record: RoundRecord) -> None:
        """A client has trained, but its reply is lost, or comes later."""
        record.client_seconds += reply.report.seconds
        if self.schedule.uses(fate):
            late = replace(reply, weight=self.schedule.weight(fate.delay))
            self._late.append(_Late(record.round + fate.delay, record.round, late))

    def _arrivals(self, record: RoundRecord) -> list[Reply]:
        """The replies of earlier rounds that arrive now and can be used."""
        due = [late for late in self._late if late.arrives <= record.round]
        self._late = [late for late in self._late if late.arrives > record.round]
        used = []
        for late in sorted(due, key=lambda late: late.reply.client):
            seconds = record.client_seconds  # counted in the round in which it trained
            if self._accept(late.reply, record):
                used.append(late.reply)
                record.late[late.reply.client] = late.asked
            record.client_seconds = seconds
        return used

    def _broadcast(self, round: int) -> Payload:
        """What the server sends in a round: made once, for the evaluation before the round and for the round."""
        if self._sent is None or self._sent[0] != round:
            payload = self.server.broadcast(round)
            if not all(bool(torch.isfinite(t).all()) for t in payload.values() if t.is_floating_point()):
                raise Diverged(f"what the server would send in round {round} holds NaN or infinite values")
            self._sent = (round, payload)
        return self._sent[1]

    def _accept(self, reply: Reply, record: RoundRecord) -> bool:
        """Count what arrived, and refuse what cannot be used."""
        record.up_bytes += nbytes(reply.payload)
        record.client_seconds += reply.report.seconds
        started = time.perf_counter()
        try:
            self._check(reply)
        except PayloadError as error:
            record.refused[reply.client] = str(error)
            _log.warning("round %d: the reply of client %d is refused: %s", record.round, reply.client, error)
            return False
        finally:
            record.server_seconds += time.perf_counter() - started
        return True

    def _check(self, reply: Reply) -> None:
        loss = reply.report.loss
        if loss is not None and not abs(loss) < _LOSS_LIMIT:
            raise PayloadError("its training loss is NaN, infinite or too large")
        self.server.check(reply.payload)

    def _finish(self, record: RoundRecord, evaluate: bool) -> None:
        if evaluate:
            started = time.perf_counter()
            clients = self.evaluated(record.round)
            record.accuracy = _accuracy(self.engine.evaluate(clients, self._broadcast(record.round + 1)), self.hostile)
            record.evaluation_seconds = time.perf_counter() - started
            for client, reason in getattr(self.engine, "refused_evaluations", {}).items():
                record.refused.setdefault(client, f"its evaluation: {reason}")
        if self.experiment.execution.profile and record.round:
            record.profile_seconds = split_round(
                self._spent,
                wall=time.perf_counter() - self._started,
                server=record.server_seconds,
                evaluation=record.evaluation_seconds,
                lanes=getattr(self.engine, "lanes", 1),
            )
        self.history.append(record)
        self._tell(lambda observer: observer.on_round(self, record))

    def _tell(self, call: Callable[[Observer], None]) -> None:
        for observer in self.observers:
            call(observer)

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and plain values that, with the clients' states, continue the run exactly."""
        values: dict[str, Any] = {"history": [record.to_dict() for record in self.history]}
        if not self.schedule.on:
            return self.server.state_dict(), values
        tensors = dict(self.server.state_dict())
        for number, late in enumerate(self._late):
            tensors |= {f"{_LATE}{number}/{name}": tensor for name, tensor in late.reply.payload.items()}
        values["busy"] = list(self.schedule.busy.items())
        values["late"] = [late.to_dict() for late in self._late]
        return tensors, values

    def load_state_dict(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Continue from `state_dict()`."""
        tensors = dict(tensors)
        late: list[Payload] = [{} for _ in values.get("late", [])]
        for name in [name for name in tensors if name.startswith(_LATE)]:
            number, _, entry = name.removeprefix(_LATE).partition("/")
            late[int(number)][entry] = tensors.pop(name)
        clients = self.experiment.clients
        self._late = [_Late.from_dict(v, p, clients) for v, p in zip(values.get("late", []), late, strict=True)]
        self.schedule.busy = {int(client): int(until) for client, until in values.get("busy", [])}
        history = [RoundRecord.from_dict(record) for record in values["history"]]
        if [record.round for record in history] != list(range(len(history))):
            raise ValueError("the history has gaps")
        self.server.check_state(tensors)
        self.server.load_state_dict(tensors)
        self.history = history
        self.stop_reason = None
        self._sent = None

    def start_over(self) -> None:
        """Go back to before the first round (the clients' side is `Engine.restore(None)`)."""
        self.load_state_dict(_copy(self._start), {"history": []})


@dataclass(frozen=True)
class _Late:
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
    def from_dict(cls, values: dict[str, Any], payload: Payload, clients: int) -> _Late:
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


def _copy(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _accuracy(evaluations: Sequence[Evaluation], hostile: frozenset[int]) -> Accuracy | None:
    if not evaluations:
        return None  # no client could be reached
    samples = sum(e.samples for e in evaluations)
    clients = {e.client: e.correct / e.samples for e in evaluations}
    names = dict.fromkeys(name for e in evaluations for name in e.others)
    others = {name: sum(e.others.get(name, 0) for e in evaluations) / samples for name in names}
    honest = [e for e in evaluations if e.client not in hostile]
    if hostile and honest:
        others["honest clients"] = sum(e.correct for e in honest) / sum(e.samples for e in honest)
    return Accuracy(
        pooled=sum(e.correct for e in evaluations) / samples,
        mean=statistics.fmean(clients.values()),
        std=statistics.pstdev(clients.values()),
        clients=clients,
        others=others,
    )
