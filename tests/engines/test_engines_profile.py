"""The parts of a round's time with real engines: exact where a clock moves only in a test's hands, bounds elsewhere."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import pytest
from engine_helpers import federation_of, inline, tiny_setup

from fedl2g.engines.workers import WorkersEngine
from fedl2g.federation import Federation, Observer
from fedl2g.learning.client import Task
from fedl2g.learning.profiling import OTHER
from fedl2g.learning.training import TrainingLog
from fedl2g.methods.base import ClientHalf, Combined, Options, ServerHalf, Trained, Traits
from fedl2g.methods.registry import Method
from fedl2g.payload import Payload
from fedl2g.round.record import RoundRecord

pytestmark = pytest.mark.usefixtures("kept_workers")


class Clock:
    """A clock that moves only when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return Clock.now

    @staticmethod
    def spend(seconds: float) -> None:
        Clock.now += seconds


BUILD, TRAIN, PREDICT, UPDATE, SEND = 0.125, 1.0, 0.25, 2.0, 0.5


class SlowServer(ServerHalf[Options]):
    def broadcast(self, round: int) -> Payload:
        Clock.spend(SEND)
        return {}

    def update(self, round: int, combined: Combined) -> None:
        Clock.spend(UPDATE)


class SlowClient(ClientHalf[Options]):
    def train(self, round: int, payload: Payload) -> Trained:
        Clock.spend(TRAIN)
        return Trained({}, TrainingLog(1, 0.5))

    def predict(self, x: Any) -> Any:
        Clock.spend(PREDICT)
        return super().predict(x)


SLOW = Method("slow", Options, SlowServer, SlowClient, Traits(raw_replies=True))


class Walls(Observer):
    """When each round ended, by the clock of the time."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_round(self, federation: Federation, record: RoundRecord) -> None:
        self.ends.append(time.perf_counter())


def test_every_second_of_a_round_is_in_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for one client: each is built whenever it is used. All is spent in one of five places, and found there."""
    build = Task.build

    def slow_build(*given: Any, **options: Any) -> Any:
        Clock.spend(BUILD)
        return build(*given, **options)

    monkeypatch.setattr(Task, "build", slow_build)
    monkeypatch.setattr(time, "perf_counter", Clock())
    setup = tiny_setup(method="test_engines_profile:SLOW", rounds=3, evaluate_every=2, execution={"profile": True})
    walls = Walls()
    federation = federation_of(setup, inline(setup, 1), walls)
    federation.run()
    federation.engine.close()
    first, *rounds = federation.history
    assert first.profile_seconds == {}
    # Before round 0 the broadcast of round 1 is made, for the evaluation; it is not made again.
    sending = {1: 0.0, 2: SEND, 3: 0.0}
    for record, (began, ended) in zip(rounds, pairwise(walls.ends), strict=True):
        trained, parts = len(record.participants), record.profile_seconds
        evaluated = record.round in (2, 3)
        assert sum(parts.values()) == ended - began
        assert parts["aggregation"] == record.server_seconds == UPDATE + sending[record.round]
        assert record.client_seconds == trained * TRAIN
        assert trained - 1 <= (parts[OTHER] - trained * TRAIN) / BUILD <= trained  # one may be in memory already
        assert parts["evaluation"] == record.evaluation_seconds
        if evaluated:
            predicted = parts["evaluation"] - SEND
            assert 3 * PREDICT + 2 * BUILD <= predicted <= 5 * (PREDICT + BUILD)  # who has not moved is not asked again
        else:
            assert parts["evaluation"] == 0
        assert parts["waiting"] == 0


@pytest.mark.slow
def test_workers_wait_while_the_server_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedl2g.engines.workers.step_seconds", lambda *a, **k: 1.0)  # measured for nothing here
    pause = 0.2
    setup = tiny_setup(rounds=2, method={"name": "feddistill"}, execution={"profile": True, "workers": 2})
    walls = Walls()
    federation = federation_of(setup, WorkersEngine(setup), walls)
    update = federation.server.update

    def slowly(round: int, combined: Combined) -> None:
        time.sleep(pause)
        update(round, combined)

    federation.server.update = slowly  # type: ignore[method-assign]
    federation.run()
    federation.engine.close()
    for record, (began, ended) in zip(federation.history[1:], pairwise(walls.ends), strict=True):
        parts, wall = record.profile_seconds, ended - began
        assert all(seconds >= 0 for seconds in parts.values())
        # Two lanes for the time of the round, and never more than passed outside of it.
        assert 2 * (record.evaluation_seconds + pause) <= sum(parts.values()) <= 2 * wall + record.server_seconds
        assert parts["aggregation"] == record.server_seconds >= pause
        assert parts["evaluation"] == 2 * record.evaluation_seconds
        assert parts["waiting"] >= pause / 2  # of one worker, while the server works in the place of the other
