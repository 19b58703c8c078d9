"""The engine over a grid: deadlines, minimum replies, lost nodes, hostile replies; no Ray, no network."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="the optional extra `flower` is not installed")

from fake_grid import QUICK, FakeClock, FakeNode, FakeSimulation, Handler, corrupting, honest, stranger, tiny_setup
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from fedl2g.engines.base import Absent
from fedl2g.engines.flower import actor, messages
from fedl2g.engines.flower.simulation import SimulationEngine
from fedl2g.engines.inline import InlineEngine
from fedl2g.errors import Diverged, FedL2GError, PayloadError, RunError
from fedl2g.federation import Federation
from fedl2g.methods.base import Reply, Trained
from fedl2g.methods.local import LocalClient
from fedl2g.methods.registry import get_method
from fedl2g.payload import Payload, to_bytes
from fedl2g.setup import Setup


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(autouse=True)
def _no_setups() -> Iterator[None]:
    """Actors of one process remember the setup of a run."""
    yield
    actor._setups.clear()


Opened = tuple[SimulationEngine, FakeSimulation]
Open = Callable[[Setup], Opened]


@pytest.fixture
def opened(tmp_path: Path, clock: FakeClock) -> Open:
    """An engine that treats refusing sites and unusable replies as a deployment does, over a grid of this process."""

    def open_engine(setup: Setup) -> Opened:
        fake = FakeSimulation(tmp_path / "stores", setup.experiment.clients, clock)
        return SimulationEngine(fake, setup, owns=False, terms=QUICK, clock=clock), fake

    return open_engine


@pytest.fixture
def simulated(tmp_path: Path, clock: FakeClock) -> Open:
    """An engine as a simulation is, over a grid of this process."""

    def open_engine(setup: Setup) -> Opened:
        fake = FakeSimulation(tmp_path / "stores", setup.experiment.clients, clock)
        return SimulationEngine(fake, setup, owns=False, clock=clock), fake

    return open_engine


def train(engine: SimulationEngine, round: int = 1) -> list[Reply | Absent]:
    """What three clients answer to a round of training."""
    return list(engine.train(round, [0, 1, 2], broadcast(engine.setup), void))


def broadcast(setup: Setup) -> Payload:
    return get_method(setup.experiment.method.name).server(setup.experiment.method, setup.task).broadcast(1)


def federation(setup: Setup, engine: Any) -> Federation:
    server = get_method(setup.experiment.method.name).server(setup.experiment.method, setup.task)
    return Federation(setup.experiment, server, engine)


def clients(answers: list[Reply | Absent]) -> tuple[list[int], list[int]]:
    """Who replied and who did not."""
    replied = sorted(a.client for a in answers if isinstance(a, Reply))
    return replied, sorted(a.client for a in answers if isinstance(a, Absent))


def test_a_run_equals_inline(opened: Open) -> None:
    setup = tiny_setup()
    engine, _ = opened(setup)
    ours, theirs = federation(setup, engine), federation(setup, InlineEngine(setup))
    ours.run()
    theirs.run()
    for a, b in zip(ours.history, theirs.history, strict=True):
        assert a.accuracy == b.accuracy
        assert a.client_losses == b.client_losses
        assert (a.up_bytes, a.down_bytes) == (b.up_bytes, b.down_bytes)


def only_class_zero(half: LocalClient, round: int, payload: Payload) -> Trained:
    """A method of somebody's own that changes its network, but not by training steps."""
    half.model.head.bias.data[0] += 1e6
    return Trained({})


def test_what_changes_without_training_steps_is_evaluated_and_saved(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalClient, "train", only_class_zero)
    setup = tiny_setup(method="local", rounds=1)
    engine, _ = opened(setup)
    runs = [federation(setup, engine), federation(setup, InlineEngine(setup))]
    for number, run in enumerate(runs):
        run.run()
        before, after = (record.accuracy for record in run.history)
        assert before is not None
        assert after is not None
        zeros = [setup.dataset.labels[part] == 0 for part in setup.partition.test]
        assert list(after.clients.values()) == [float(zero.mean()) for zero in zeros]
        assert before != after
        saved = tmp_path / f"saved-{number}"
        saved.mkdir()
        run.engine.save(saved)
        assert len(list(saved.iterdir())) == setup.experiment.clients


def test_a_site_slower_than_the_deadline_is_missing_and_the_round_goes_on(opened: Open) -> None:
    setup = tiny_setup(replies={"deadline_seconds": 0.8, "minimum": 2})
    engine, fake = opened(setup)
    fake.grid.nodes[102].seconds = 30
    answers = train(engine)
    assert clients(answers) == ([0, 1], [2])
    assert "did not answer in time" in next(a.reason for a in answers if isinstance(a, Absent))


def test_below_the_minimum_wait_waits(opened: Open) -> None:
    setup = tiny_setup(replies={"deadline_seconds": 0.3, "minimum": 3, "below_minimum": "wait"})
    engine, fake = opened(setup)
    fake.grid.nodes[102].seconds = 1.5
    assert clients(train(engine)) == ([0, 1, 2], [])


def test_below_the_minimum_skip_uses_no_reply(opened: Open) -> None:
    setup = tiny_setup(replies={"deadline_seconds": 0.5, "minimum": 3, "below_minimum": "skip"}, rounds=1)
    engine, fake = opened(setup)
    loop = federation(setup, engine)
    before = {name: tensor.clone() for name, tensor in loop.server.state_dict().items()}
    fake.grid.nodes[102].handle = lambda request, inner=fake.grid.nodes[102].handle: (
        None if request.metadata.message_type == "train" else inner(request)
    )
    loop.run()
    assert loop.history[1].missing.keys() == {0, 1, 2}
    assert all(torch.equal(before[name], tensor) for name, tensor in loop.server.state_dict().items())


def test_below_the_minimum_stop_stops_and_says_what_to_do(opened: Open) -> None:
    setup = tiny_setup(replies={"deadline_seconds": 0.3, "minimum": 3, "below_minimum": "stop"})
    engine, fake = opened(setup)
    fake.grid.nodes[102].seconds = 30
    with pytest.raises(RunError, match=r"2 replies, but 3 are needed.*resume"):
        train(engine)


def test_a_lost_node_comes_back_as_another_and_nothing_is_trained_twice(opened: Open) -> None:
    setup = tiny_setup()
    engine, fake = opened(setup)
    first = {a.client: a for a in train(engine) if isinstance(a, Reply)}
    fake.grid.nodes[101].gone = True
    fake.grid.nodes[201] = FakeNode(honest(fake.root, 1))
    again = {a.client: a for a in train(engine) if isinstance(a, Reply)}
    assert again.keys() == first.keys()
    assert "train" in fake.grid.nodes[201].received
    for client, reply in again.items():  # from the store: even the seconds are those of the first time
        assert reply.report == first[client].report
        assert to_bytes(reply.payload) == to_bytes(first[client].payload)


def test_an_error_of_a_node_is_asked_again(opened: Open) -> None:
    setup = tiny_setup()
    engine, fake = opened(setup)
    node, failures = fake.grid.nodes[100], [0]
    inner = node.handle

    def crash_twice(request: Message) -> Message | None:
        if request.metadata.message_type == "train" and failures[0] < 2:
            failures[0] += 1
            return Message(Error(8, "the process was killed"), reply_to=request)
        return inner(request)

    node.handle = crash_twice
    assert clients(train(engine)) == ([0, 1, 2], [])
    assert failures == [2]


def _payload(records: RecordDict, payload: Payload) -> None:
    data = to_bytes(payload)
    records["payload"] = ArrayRecord({"payload": Array("uint8", (len(data),), "safetensors", data)})


def _rows(**changes: Any) -> Payload:
    return {"ids": torch.tensor([0, 1]), "rows": torch.zeros(2, 512)} | changes


HOSTILE: dict[str, tuple[Callable[[RecordDict], None], str]] = {
    "wrong shape": (lambda r: _payload(r, _rows(rows=torch.zeros(2, 7))), "shape"),
    "NaN": (lambda r: _payload(r, _rows(rows=torch.full((2, 512), float("nan")))), "NaN"),
    "unknown class ids": (lambda r: _payload(r, _rows(ids=torch.tensor([0, 99]))), "class id"),
    "unknown entry": (lambda r: _payload(r, _rows(weights=torch.zeros(3))), "unknown entry"),
    "absurd size": (lambda r: _payload(r, _rows(rows=torch.zeros(2000, 512))), "at most"),
    "lying about its size": (
        lambda r: r.update(payload=ArrayRecord({"payload": Array("uint8", (9,), "safetensors", b"1")})),
        "declared form",
    ),
    "no payload at all": (lambda r: r.pop("payload"), "no ArrayRecord"),
    "bytes that are no payload": (
        lambda r: r.update(payload=ArrayRecord({"payload": Array("uint8", (4,), "safetensors", b"abcd")})),
        "not a payload",
    ),
    "another client's name": (lambda r: r["about"].update(client=1), "client 1"),
    "another round": (lambda r: r["about"].update(round=7), "round 7"),
    "no report": (lambda r: r.pop("report"), "no MetricRecord"),
    "a negative count": (lambda r: r["report"].update(samples=-1), "samples"),
    "an infinite loss": (lambda r: r["report"].update(loss=float("inf")), "loss is NaN, infinite or too large"),
    "a list for a loss": (lambda r: r["report"].update(loss=[1.0]), "loss is not a number"),
    "negative seconds": (lambda r: r["report"].update(seconds=-1.0), "seconds"),
    "seconds without end": (lambda r: r["report"].update(seconds=1e300), "seconds"),
    "a loss without end": (lambda r: r["report"].update(loss=1e300), "loss is NaN, infinite or too large"),
    "no samples": (lambda r: r["report"].update(samples=0), "without samples"),
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
        (lambda r: r["counts"].update(correct=10**9), "counts 1000000000 correct"),
        (lambda r: r.update(others=MetricRecord({f"n{i}": 0 for i in range(17)})), "17 further predictors"),
    ],
)
def test_a_hostile_evaluation_is_refused_and_recorded(
    spoil: Callable[[RecordDict], object], reason: str, opened: Open
) -> None:
    setup = tiny_setup(rounds=1)
    engine, fake = opened(setup)
    spoiled = corrupting(honest(fake.root, 2), lambda records: void(spoil(records)), "evaluate")
    fake.grid.nodes[102].handle = spoiled
    loop = federation(setup, engine)
    loop.run()
    for record in loop.history:
        assert reason in record.refused[2]
        assert record.accuracy is not None
        assert record.accuracy.clients.keys() == {0, 1}


def void(_: object) -> None:
    """For expressions used as statements."""


def nothing_usable(fake: FakeSimulation, times: int | None = None) -> None:
    """All nodes answer with NaN: always, or so many times."""
    for client, node in enumerate(fake.grid.nodes.values()):
        left = itertools.count() if times is None else iter(range(times))

        def corrupt(records: RecordDict, left: Iterator[int] = left) -> None:
            if next(left, None) is not None:
                HOSTILE["NaN"][0](records)

        node.handle = corrupting(honest(fake.root, client), corrupt)


def test_a_round_without_a_usable_reply_waits_and_asks_again(opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    setup = tiny_setup(replies={"minimum": 2, "below_minimum": "wait"}, rounds=1)
    engine, fake = opened(setup)
    nothing_usable(fake, times=2)
    loop = federation(setup, engine)
    with caplog.at_level(logging.WARNING):
        loop.run()
    assert loop.history[1].client_losses.keys() == {0, 1, 2}
    assert sum("is refused: " in message for message in caplog.messages) == 6
    waiting = "only 0 of 2 replies can be used; asking again: client 0, client 1, client 2"
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


def test_in_a_simulation_nothing_but_nan_is_divergence(simulated: Open) -> None:
    setup = tiny_setup(replies={"below_minimum": "wait"})
    engine, fake = simulated(setup)
    nothing_usable(fake)
    with pytest.raises(Diverged, match="no reply could be used"):
        federation(setup, engine).run()


def restarting(clock: FakeClock, handle: Handler, seconds: float) -> Handler:
    """A node whose actor is being started again for some time, as Ray says it."""
    return lambda request: (
        Message(Error(0, "The actor is restarting"), reply_to=request) if clock.now < seconds else handle(request)
    )


@pytest.mark.parametrize("seconds", [30, 600])
def test_in_a_simulation_a_restarting_actor_is_waited_for_but_not_forever(
    seconds: float, simulated: Open, clock: FakeClock
) -> None:
    setup = tiny_setup(rounds=1)
    engine, fake = simulated(setup)
    assert clients(train(engine)) == ([0, 1, 2], [])  # all are known
    node = fake.grid.nodes[101]
    node.handle = restarting(clock, node.handle, seconds)
    if seconds < 60:
        assert clients(train(engine, 2)) == ([0, 1, 2], [])
    else:
        with pytest.raises(RunError, match=r"client 1 failed 12 times in a row; .* restarting"):
            train(engine, 2)


def test_when_flower_itself_has_ended_nobody_is_waited_for(simulated: Open, clock: FakeClock) -> None:
    setup = tiny_setup()
    engine, fake = simulated(setup)
    fake.grid.nodes.clear()
    fake.error = OSError("no space left")
    with pytest.raises(RunError, match="simulation ended: no space left"):
        train(engine)
    assert clock.now < 1


def test_of_a_long_refusal_the_last_words_are_kept() -> None:
    records = messages.pack_refusal(RunError("x" * 10**6 + " the error"))
    with pytest.raises(messages.Refused, match=r"x the error$") as refused:
        messages.unpack_identity(records, 3)
    assert len(str(refused.value)) < 6000


def test_in_a_simulation_a_reply_that_is_too_large_ends_the_run_at_once(simulated: Open, clock: FakeClock) -> None:
    setup = tiny_setup(replies={"maximum_mb": 0.001, "below_minimum": "wait"})
    engine, _ = simulated(setup)
    with pytest.raises(RunError, match=r"^client 0: .* at most"):
        train(engine)
    assert clock.now < 1


def test_in_a_simulation_a_mistake_in_a_method_ends_the_run_at_once_with_its_traceback(
    simulated: Open, monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    def mistaken(half: LocalClient, round: int, payload: Payload) -> Trained:
        raise KeyError("a mistake")

    monkeypatch.setattr(LocalClient, "train", mistaken)
    setup = tiny_setup(method={"name": "local"})
    engine, _ = simulated(setup)
    with pytest.raises(FedL2GError, match=r"(?s)line \d+, in mistaken\n.*KeyError: 'a mistake'$"):
        list(engine.train(1, [0, 1, 2], {}, void))
    assert clock.now < 1


@pytest.mark.parametrize("kind", ["query", "train", "evaluate"])
def test_a_node_that_was_started_again_unnoticed_is_asked_again(
    kind: str, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    setup = tiny_setup(rounds=1)
    engine, fake = opened(setup)
    node = fake.grid.nodes[101]
    inner = node.handle

    def forget_once(request: Message) -> Message | None:
        if request.metadata.message_type == kind and node.started == "once":
            node.started = "twice"
            return None
        return inner(request)

    node.handle = forget_once
    loop = federation(setup, engine)
    with caplog.at_level(logging.WARNING):
        loop.run()
    assert node.started == "twice"
    assert loop.history[1].client_losses.keys() == {0, 1, 2}
    assert loop.history[1].accuracy is not None
    assert loop.history[1].accuracy.clients.keys() == {0, 1, 2}
    if kind != "query":
        assert any("client 1: its node was started again" in message for message in caplog.messages)


@pytest.mark.parametrize("claim", [3, -1, 99, "zero", 1.5])
def test_an_unknown_client_id_is_refused_and_counted(claim: Any, opened: Open) -> None:
    setup = tiny_setup()
    engine, fake = opened(setup)
    fake.grid.nodes = {7: FakeNode(stranger(claim)), **fake.grid.nodes}
    assert clients(train(engine)) == ([0, 1, 2], [])
    assert len(engine.nodes.strangers) == 1
    assert fake.grid.nodes[7].received == ["query"]


def test_of_two_nodes_with_one_client_the_second_is_refused(opened: Open) -> None:
    setup = tiny_setup()
    engine, fake = opened(setup)
    fake.grid.nodes[900] = FakeNode(stranger(0))
    assert clients(train(engine)) == ([0, 1, 2], [])
    assert len(engine.nodes.strangers) == 1
    assert fake.grid.nodes[900].received == ["query"]


def test_a_site_that_refuses_is_missing_with_its_own_words(opened: Open) -> None:
    setup = tiny_setup(rounds=1)
    engine, fake = opened(setup)
    node = fake.grid.nodes[102]
    node.handle = corrupting(node.handle, lambda r: (r.clear(), r.update(refusal=ConfigRecord({"kind": "RunError", "message": "disk full"})))[0])  # fmt: skip  # noqa: E501
    loop = federation(setup, engine)
    loop.run()
    assert loop.history[1].missing == {2: "the site does not take part: disk full"}


def test_reports_that_are_no_reports_are_refused() -> None:
    records = RecordDict(
        {"about": ConfigRecord({"client": 0, "run": "a", "round": 1}), "report": MetricRecord({"x": 1})}
    )
    with pytest.raises(PayloadError, match="unknown number"):
        messages.unpack_reply(records, client=0, run="a", round=1, limit=100)
