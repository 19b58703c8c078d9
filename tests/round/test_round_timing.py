"""Where the time of a round goes, by a clock that moves only when a test says so: sums are exact."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from fedl2g.learning.profiling import OTHER, PARTS
from fedl2g.methods.base import Report
from fedl2g.round.record import RoundRecord, seconds_per_client
from fedl2g.round.timing import Timing


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


def _round(timing: Timing, clock: Clock) -> None:
    timing.start()
    with timing.server():
        clock.pass_(0.5)
    clock.pass_(4)
    timing.client(Report(5, seconds=2.0, laps={"data": 0.25, OTHER: 0.125}))
    timing.client(Report(5, seconds=1.5, laps={"data": 0.5}))
    with suppress(ZeroDivisionError), timing.server():
        clock.pass_(0.25)
        _ = 1 / 0  # an error does not lose the time until then
    with timing.evaluation():
        clock.pass_(1)


def _written(timing: Timing, round: int = 1) -> RoundRecord:
    record = RoundRecord(round)
    timing.write(record, ())
    return record


def test_seconds_add_up(clock: Clock) -> None:
    timing = Timing(False, 2)
    _round(timing, clock)
    record = _written(timing)
    assert (record.server_seconds, record.client_seconds, record.evaluation_seconds) == (0.75, 3.5, 1.0)
    assert record.replied == 2
    assert record.profile_seconds == {}


def test_a_round_starts_from_nothing(clock: Clock) -> None:
    timing = Timing(True, 2)
    _round(timing, clock)
    timing.start()
    record = _written(timing)
    assert (record.server_seconds, record.client_seconds, record.evaluation_seconds) == (0, 0, 0)
    assert set(record.profile_seconds.values()) == {0.0}


def test_the_parts_are_the_time_of_the_round_on_every_lane(clock: Clock) -> None:
    timing = Timing(True, 2)
    _round(timing, clock)
    clock.pass_(0.25)  # until the record is written
    parts = _written(timing).profile_seconds
    assert set(parts) == set(PARTS)
    assert sum(parts.values()) == 2 * 6.0
    assert parts["data"] == 0.75
    assert parts[OTHER] == 3.5 - 0.75 + 0.125
    assert parts["aggregation"] == 0.75
    assert parts["evaluation"] == 2 * 1.0
    assert parts["waiting"] == 12 - 0.75 - 2.875 - 0.75 - 2


def test_the_evaluation_before_the_first_round_has_no_parts(clock: Clock) -> None:
    timing = Timing(True, 1)
    _round(timing, clock)
    assert _written(timing, round=0).profile_seconds == {}


def test_there_is_nothing_to_remember() -> None:
    assert Timing(True, 1).state_dict() == ({}, {})


def test_client_seconds_are_the_mean_of_a_client_in_a_round() -> None:
    rounds = [
        RoundRecord(0),
        RoundRecord(1, [0, 1, 2], client_seconds=6.0, replied=3),
        RoundRecord(2, [0, 1, 2], client_seconds=2.0, replied=1),  # two did not reply
        RoundRecord(3, [0, 1], client_seconds=4.0),  # by a version that did not count replies
    ]
    assert seconds_per_client(rounds) == 12.0 / 6
    assert seconds_per_client(rounds[:1]) is None
