"""The round loop. It depends on the interfaces of methods, engines and policies only, and does no file I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedl2g.engines.base import Engine
from fedl2g.errors import Diverged
from fedl2g.experiment import Experiment
from fedl2g.methods.base import AnyServerHalf
from fedl2g.payload import Payload, check_payload, nbytes, tensors_spec
from fedl2g.round.policies import make_policies
from fedl2g.round.record import RoundRecord


class Observer:
    """Callbacks of a federation: progress, metrics, checkpoints, early stopping, trackers."""

    def on_start(self, federation: Federation) -> None:
        """Called before the first round of this process, also when a run is resumed."""

    def on_round(self, federation: Federation, record: RoundRecord) -> None:
        """Called after each round; `federation.stop(reason)` here ends the run."""

    def on_end(self, federation: Federation) -> None:
        """Called after the last round; not called when an error ended the loop."""


class Federation:
    """Runs the rounds of an experiment between a method's server half and the clients of an engine."""

    def __init__(
        self, experiment: Experiment, server: AnyServerHalf, engine: Engine, observers: Sequence[Observer] = ()
    ) -> None:
        self.experiment = experiment
        self.server = server
        self.engine = engine
        self.observers = observers
        self.policies = make_policies(experiment, server, engine)
        self.history: list[RoundRecord] = []
        self.stop_reason: str | None = None
        self._sent: tuple[int, Payload] | None = None
        tensors, values = self.state_dict()
        self._start = ({name: tensor.clone() for name, tensor in tensors.items()}, values)

    @property
    def round(self) -> int:
        """The last completed round; 0 before the first."""
        return self.history[-1].round if self.history else 0

    def stop(self, reason: str) -> None:
        """End the run after the current round."""
        self.stop_reason = self.stop_reason or reason

    def run(self) -> None:
        """Run the remaining rounds."""
        self._notify(lambda observer: observer.on_start(self))
        if not self.history:
            self.policies.timing.start()
            self._finish(RoundRecord(0))
        while self.round < self.experiment.rounds and self.stop_reason is None:
            round = self.round + 1
            plan = self.policies.sampler.plan(round)
            if (reason := self.policies.ledger.reason_to_stop(round, plan)) is not None:
                self.stop(reason)
            else:
                self._run_round(round, plan)
        self._notify(lambda observer: observer.on_end(self))

    def _run_round(self, round: int, plan: list[int]) -> None:
        policies = self.policies
        policies.timing.start()
        with policies.timing.server():
            broadcast = self._broadcast(round)
        asked = policies.availability.admit(round, plan)
        answers = self.engine.train(round, asked, broadcast, policies.inbox.check)
        usable = policies.inbox.collect(round, policies.availability.deliver(round, answers))
        with policies.timing.server():
            combined = policies.aggregator.combine(round, usable, broadcast)
            if combined is not None:
                self.server.update(round, combined)
        policies.ledger.spend(round, plan)
        record = RoundRecord(round, plan, down_bytes=nbytes(broadcast) * len(asked), server=self.server.metrics())
        self._finish(record, asked)

    def _finish(self, record: RoundRecord, asked: Sequence[int] = ()) -> None:
        """Evaluate if an evaluation is due, let every policy write its part of the record, notify the observers."""
        evaluator = self.policies.evaluator
        if due := evaluator.due(record.round):
            with self.policies.timing.evaluation():
                evaluator.collect(self.engine.evaluate(due, self._broadcast(record.round + 1)))
        for _, policy in self.policies:
            policy.write(record, asked)
        self.history.append(record)
        self._notify(lambda observer: observer.on_round(self, record))

    def _broadcast(self, round: int) -> Payload:
        """The broadcast of a round, cached: the evaluation before the round and the round itself share it."""
        if self._sent is None or self._sent[0] != round:
            payload = self.server.broadcast(round)
            if not all(bool(torch.isfinite(t).all()) for t in payload.values() if t.is_floating_point()):
                raise Diverged(f"round {round}: the server's broadcast holds NaN or infinite values")
            self._sent = (round, payload)
        return self._sent[1]

    def _notify(self, call: Callable[[Observer], None]) -> None:
        for observer in self.observers:
            call(observer)

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON values from which, with the clients' states, the run continues exactly."""
        tensors = {f"server.{name}": tensor for name, tensor in self.server.state_dict().items()}
        values: dict[str, Any] = {"history": [record.to_dict() for record in self.history], "policies": {}}
        for name, policy in self.policies:
            own, values["policies"][name] = policy.state_dict()
            tensors |= {f"{name}.{key}": tensor for key, tensor in own.items()}
        return tensors, values

    def load_state_dict(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Restore a `state_dict()`; ValueError, KeyError, TypeError or PayloadError if it is malformed."""
        history = [RoundRecord.from_dict(record) for record in values["history"]]
        if [record.round for record in history] != list(range(len(history))):
            raise ValueError("the history has gaps")
        parts: dict[str, dict[str, Tensor]] = {"server": {}, **{name: {} for name, _ in self.policies}}
        for name, tensor in tensors.items():
            owner, _, key = name.partition(".")
            parts[owner][key] = tensor
        check_payload(parts["server"], tensors_spec(self.server.state_dict()))
        self.server.load_state_dict(parts["server"])
        for name, policy in self.policies:
            policy.load_state_dict(parts[name], values["policies"][name])
        self.history = history
        self.stop_reason = None
        self._sent = None

    def start_over(self) -> None:
        """Reset the server's side to before the first round; `Engine.restore(None)` resets the clients."""
        self.load_state_dict(*self._start)
