"""Hostile and broken answers: refused, recorded, and the run goes on as the settings say; no process, no network."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="the optional extra `flower` is not installed")

from fake_engine import Open, clients, federation, nothing_usable, put_payload, rows, train, void
from fake_grid import FakeNode, corrupting, honest, stranger, tiny_setup
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

from fedl2g.engines.flower import identity
from fedl2g.errors import RunError

HOSTILE: dict[str, tuple[Callable[[RecordDict], None], str]] = {
    "wrong shape": (lambda r: put_payload(r, rows(rows=torch.zeros(2, 7))), "shape"),
    "NaN": (lambda r: put_payload(r, rows(rows=torch.full((2, 512), float("nan")))), "NaN"),
    "unknown class ids": (lambda r: put_payload(r, rows(ids=torch.tensor([0, 99]))), "class id"),
    "unknown entry": (lambda r: put_payload(r, rows(weights=torch.zeros(3))), "is unknown"),
    "absurd size": (lambda r: put_payload(r, rows(rows=torch.zeros(2000, 512))), "at most"),
    "lying about its size": (
        lambda r: r.update(payload=ArrayRecord({"payload": Array("uint8", (9,), "safetensors", b"1")})),
        "declared form",
    ),
    "no payload at all": (lambda r: r.pop("payload"), "no record 'payload'"),
    "bytes that are no payload": (
        lambda r: r.update(payload=ArrayRecord({"payload": Array("uint8", (4,), "safetensors", b"abcd")})),
        "cannot be decoded",
    ),
    "another client's name": (lambda r: r["about"].update(client=1), "client 1"),
    "another round": (lambda r: r["about"].update(round=7), "round 7"),
    "no report": (lambda r: r.pop("report"), "no record 'report'"),
    "a negative count": (lambda r: r["report"].update(samples=-1), "samples"),
    "an infinite loss": (lambda r: r["report"].update(loss=float("inf")), "expected a number from 0 to 1e+09"),
    "a list for a loss": (lambda r: r["report"].update(loss=[1.0]), "its loss is of type list"),
    "negative seconds": (lambda r: r["report"].update(seconds=-1.0), "seconds"),
    "seconds without end": (lambda r: r["report"].update(seconds=1e300), "seconds"),
    "a loss without end": (lambda r: r["report"].update(loss=1e300), "expected a number from 0 to 1e+09"),
    "no samples": (
        lambda r: r["report"].update(samples=0),
        "samples: 0 is not allowed; expected a whole number from 1",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_reply_is_refused_logged_and_the_run_goes_on(
    kind: str, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    corrupt, reason = HOSTILE[kind]
    setup = tiny_setup(replies={"maximum_mb": 1.0}, rounds=1)
    engine, fake = opened(setup)
    fake.grid.nodes[102].handle = corrupting(honest(fake.root, 2), lambda records: void(corrupt(records)))
    loop = federation(setup, engine)
    with caplog.at_level(logging.WARNING):
        loop.run()
    record = loop.history[1]
    assert record.refused.keys() == {2}
    assert reason in record.refused[2]
    assert record.client_losses.keys() == {0, 1}


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda r: r["counts"].update(correct=10**9), "correct: 1000000000 is not allowed"),
        (lambda r: r.update(others=MetricRecord({f"n{i}": 0 for i in range(17)})), "17 additional predictors"),
    ],
)
def test_a_hostile_evaluation_is_refused_and_recorded(
    spoil: Callable[[RecordDict], object], reason: str, opened: Open
) -> None:
    setup = tiny_setup(rounds=1)
    engine, fake = opened(setup)
    spoiled = corrupting(honest(fake.root, 2), lambda records: void(spoil(records)), "evaluate")
    fake.grid.nodes[102].handle = corrupting(spoiled, lambda records: void(spoil(records)), "train")
    loop = federation(setup, engine)
    loop.run()
    for record in loop.history:
        assert reason in record.refused[2]
        assert record.accuracy is not None
        assert record.accuracy.clients.keys() == {0, 1}
    assert loop.history[1].client_losses.keys() == {0, 1, 2}  # the upload beside it is used


def test_a_round_without_a_usable_reply_waits_and_asks_again(opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    setup = tiny_setup(replies={"minimum": 2, "below_minimum": "wait"}, rounds=1)
    engine, fake = opened(setup)
    nothing_usable(fake, times=2)
    loop = federation(setup, engine)
    with caplog.at_level(logging.WARNING):
        loop.run()
    assert loop.history[1].client_losses.keys() == {0, 1, 2}
    assert sum("is refused: " in message for message in caplog.messages) == 6
    waiting = "only 0 of 2 replies can be used; retrying: client 0, client 1, client 2"
    assert sum(waiting in message for message in caplog.messages) == 2


def test_a_round_without_a_usable_reply_is_skipped(opened: Open) -> None:
    setup = tiny_setup(replies={"below_minimum": "skip"}, rounds=2)
    engine, fake = opened(setup)
    nothing_usable(fake)
    loop = federation(setup, engine)
    before = {name: tensor.clone() for name, tensor in loop.server.state_dict().items()}
    loop.run()
    assert [record.refused.keys() for record in loop.history[1:]] == [{0, 1, 2}, {0, 1, 2}]
    assert all(torch.equal(before[name], tensor) for name, tensor in loop.server.state_dict().items())


def test_a_round_without_a_usable_reply_stops_the_run(opened: Open) -> None:
    setup = tiny_setup(replies={"below_minimum": "stop"})
    engine, fake = opened(setup)
    nothing_usable(fake)
    with pytest.raises(RunError, match=r"0 replies, but 1 are needed.*resume"):
        federation(setup, engine).run()


@pytest.mark.parametrize("claim", [3, -1, 99, "zero", 1.5])
def test_an_unknown_client_id_is_refused_and_counted(claim: Any, opened: Open) -> None:
    setup = tiny_setup()
    engine, fake = opened(setup)
    fake.grid.nodes = {7: FakeNode(stranger(claim)), **fake.grid.nodes}
    assert clients(train(engine)) == ([0, 1, 2], [])
    assert len(engine.nodes.rejected) == 1
    assert fake.grid.nodes[7].received == ["query"]


def test_of_two_nodes_with_one_client_the_second_is_refused(opened: Open) -> None:
    setup = tiny_setup()
    engine, fake = opened(setup)
    fake.grid.nodes[900] = FakeNode(stranger(0))
    assert clients(train(engine)) == ([0, 1, 2], [])
    assert len(engine.nodes.rejected) == 1
    assert fake.grid.nodes[900].received == ["query"]


def test_of_a_long_refusal_the_last_words_are_kept() -> None:
    records = identity.pack_refusal(RunError("x" * 10**6 + " the error"))
    with pytest.raises(identity.Refused, match=r"x the error$") as refused:
        identity.unpack_identity(records, 3)
    assert len(str(refused.value)) < 6000
