"""What arrives is counted, checked and ordered; what cannot be used is refused with its reason, the others go on."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedl2g.engines.base import Absent, Answer, Rejected
from fedl2g.errors import Diverged, PayloadError
from fedl2g.experiment import Experiment
from fedl2g.federation import Federation
from fedl2g.methods.base import Reply, Report, Traits
from fedl2g.payload import Payload, class_vector_spec
from fedl2g.round.inbox import Inbox
from fedl2g.round.record import RoundRecord
from fedl2g.round.timing import Timing
from fedl2g.runs.result import summarize
from puppets import puppet_federation

BROKEN: dict[int, Payload] = {
    1: {"ids": torch.tensor([0]), "rows": torch.tensor([[float("nan"), 0.0]])},
    2: {"ids": torch.tensor([7]), "rows": torch.zeros(1, 2)},
    3: {"ids": torch.tensor([0]), "rows": torch.zeros(1, 2, dtype=torch.float64)},
    4: {"ids": torch.tensor([0]), "rows": torch.zeros(1, 2), "pickle": torch.zeros(1)},
    5: {"ids": torch.tensor([0, 0]), "rows": torch.zeros(2, 2)},
    6: {"rows": torch.zeros(1, 2)},
    7: {"ids": torch.tensor([0]), "rows": torch.zeros(1, 2**20)},
}


GOOD: Payload = {"ids": torch.tensor([0]), "rows": torch.full((1, 2), 4.0)}  # 8 + 8 bytes


def _federation(sound: bool) -> Federation:
    """Client 0 is sound or not, the others are not."""
    experiment = Experiment(method="feddistill", clients=8, rounds=3)

    def say(client: int, round: int, received: Payload) -> Payload:
        return BROKEN.get(client, GOOD if sound else BROKEN[1])

    return puppet_federation(experiment, say)[0]


def test_broken_replies_are_refused_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    federation = _federation(sound=True)
    with caplog.at_level(logging.WARNING):
        federation.run()
    for record in federation.history[1:]:
        assert set(record.refused) == set(BROKEN)
        for client, word in {
            1: "NaN",
            2: "class id",
            3: "dtype",
            4: "pickle",
            5: "distinct",
            6: "ids",
            7: "shape",
        }.items():
            assert word in record.refused[client]
    assert federation.server.state_dict()["vectors"].tolist() == [[4.0, 4.0], [0.0, 0.0]]
    assert sum("is refused" in message for message in caplog.messages) == 21
    result = summarize(federation.history, method="feddistill", seed=0, status="finished", run="")
    assert result.refused == 21


def test_a_round_of_nothing_but_broken_replies_ends_the_run() -> None:
    with pytest.raises(Diverged, match="no reply could be used"):
        _federation(sound=False).run()


def _inbox(patient: bool = False) -> Inbox:
    return Inbox(Traits(), class_vector_spec(2, 2, torch.float32), Timing(False, 1), patient=patient)


def _reply(client: int, payload: Payload = GOOD, loss: float | None = 0.5) -> Reply:
    return Reply(client, payload, Report(5, 1, loss, 1.0))


def _written(inbox: Inbox, **filled: Any) -> RoundRecord:
    record = RoundRecord(1, **filled)
    inbox.write(record, ())
    return record


def test_a_round_in_exact_numbers() -> None:
    inbox = _inbox()
    answers: list[Answer] = [
        _reply(5, loss=2.0),
        Absent(2, "no answer in time", Report(0, seconds=9.0)),
        _reply(3, loss=1.0),
        Rejected(4, "not a payload"),
        _reply(1, BROKEN[1]),
        _reply(0, loss=None),
    ]
    assert [reply.client for reply in inbox.collect(1, iter(answers))] == [0, 3, 5]
    record = _written(inbox, missing={7: "away"}, refused={8: "its evaluation"})
    assert record.up_bytes == 4 * 16  # of the refused reply too: it did arrive
    assert record.refused == {8: "its evaluation", 4: "not a payload", 1: record.refused[1]}
    assert "NaN" in record.refused[1]
    assert record.missing == {7: "away", 2: "no answer in time"}
    assert record.client_losses == {3: 1.0, 5: 2.0}
    assert record.loss == 1.5
    inbox.collect(2, [])  # nothing is carried over
    assert _written(inbox) == RoundRecord(1)


def _measured(client: int, **metrics: float) -> Reply:
    return Reply(client, GOOD, Report(5, 1, 0.5, 1.0, metrics=metrics))


def test_the_numbers_of_a_method_are_recorded_for_each_client_with_their_mean() -> None:
    traits = Traits(metrics={"alignment": (-1.0, 1.0), "other": (0.0, 9.0)})
    inbox = Inbox(traits, class_vector_spec(2, 2, torch.float32), Timing(False, 1), patient=False)
    inbox.collect(1, [_measured(4, alignment=-0.75), _measured(1, alignment=0.25), _reply(2)])
    record = _written(inbox)
    assert record.client_metrics == {"alignment": {1: 0.25, 4: -0.75}}
    assert record.metrics == {"alignment": -0.25}
    assert RoundRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record
    for wrong, message in (
        ({"alignment": 1.5}, r"its alignment is 1.5; expected a number from -1 to 1"),
        ({"alignment": float("nan")}, r"its alignment is nan"),
        ({"secret": 1.0}, r"unknown number 'secret'; expected"),
    ):
        with pytest.raises(PayloadError, match=message):
            inbox.check(_measured(0, **wrong))


def test_the_accepted_replies_are_the_very_replies_that_came() -> None:
    replies = [_reply(2), _reply(0)]
    accepted = _inbox().collect(1, replies)
    assert accepted[0] is replies[1]
    assert accepted[1] is replies[0]


def test_every_answer_says_how_long_it_took() -> None:
    timing = Timing(False, 1)
    inbox = Inbox(Traits(), {}, timing, patient=False)
    inbox.collect(1, [Reply(0, {}, Report(5, seconds=1.0)), Absent(1, "lost", Report(5, seconds=2.0))])
    record = RoundRecord(1)
    timing.write(record, ())
    assert record.client_seconds == 3.0


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -float("inf"), 1e30, -1e31])
def test_a_loss_that_is_no_number_is_refused(loss: float) -> None:
    with pytest.raises(PayloadError, match="training loss"):
        _inbox().check(_reply(0, loss=loss))
    assert [r.client for r in _inbox().collect(1, [_reply(0, loss=loss), _reply(1)])] == [1]


@pytest.mark.parametrize("client", sorted(BROKEN))
def test_what_an_engine_may_ask_is_what_the_round_decides(client: int) -> None:
    """Engines that wait for usable replies check with the same function."""
    inbox = _inbox()
    with pytest.raises(PayloadError) as refused:
        inbox.check(_reply(client, BROKEN[client]))
    inbox.collect(1, [_reply(client, BROKEN[client]), _reply(0)])
    assert _written(inbox).refused == {client: str(refused.value)}


BAD, OTHER_BAD, ONE = _reply(1, BROKEN[1]), _reply(2, BROKEN[2]), _reply(0)


@pytest.mark.parametrize(
    ("rounds", "diverges"),
    [
        ([[BAD, OTHER_BAD]], 1),  # several at once
        ([[BAD, Rejected(3, "not a payload")]], 1),
        ([[BAD, OTHER_BAD, ONE]], None),
        ([[BAD], [OTHER_BAD]], 2),  # one, and one again
        ([[BAD], [BAD, ONE], [BAD]], None),
        ([[BAD], [], [BAD]], None),  # a round in which nobody was asked lies between
        ([[BAD], [Absent(3, "late")], [BAD], [BAD]], 4),
        ([[Absent(3, "late")], [Absent(3, "late"), Absent(4, "late")]], None),
    ],
)
def test_when_training_has_diverged(rounds: list[list[Answer]], diverges: int | None) -> None:
    inbox, patient = _inbox(), _inbox(patient=True)
    for round, answers in enumerate(rounds, 1):
        patient.collect(round, answers)  # never says so
        if round == diverges:
            with pytest.raises(Diverged, match=f"round {round}: no reply could be used"):
                inbox.collect(round, answers)
        else:
            inbox.collect(round, answers)


def test_one_broken_round_is_remembered_over_an_interruption() -> None:
    first = _inbox()
    first.collect(1, [BAD])
    tensors, values = first.state_dict()
    assert (tensors, values) == ({}, {"empty": True})
    second = _inbox()
    second.load_state_dict(tensors, values)
    assert _written(second) == RoundRecord(1)  # of the round itself nothing: that is in its record
    with pytest.raises(Diverged):
        second.collect(2, [replace(BAD, client=7)])
