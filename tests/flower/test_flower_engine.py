"""The engine over a grid: deadlines, minimum replies, lost nodes, simulated failures; no process, no network."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="the optional extra `flower` is not installed")

from fake_engine import Open, clients, federation, nothing_usable, train, void
from fake_grid import FakeClock, FakeGrid, FakeNode, Handler, corrupting, honest, tiny_setup
from flwr.app import ConfigRecord, Error, Message

from fedl2g.deploy.server_app import DeploymentEngine
from fedl2g.engines.base import Absent, Evaluation
from fedl2g.engines.flower.messages import Request, pack_evaluation
from fedl2g.engines.flower.node import Node
from fedl2g.engines.flower.simulation import SimulationEngine
from fedl2g.engines.inline import InlineEngine
from fedl2g.errors import Diverged, FedL2GError, RunError
from fedl2g.methods.base import Reply, Trained
from fedl2g.methods.local import LocalClient
from fedl2g.payload import Payload, to_bytes


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


def test_in_a_simulation_nothing_but_nan_is_divergence(simulated: Open) -> None:
    setup = tiny_setup(replies={"below_minimum": "wait"})
    engine, fake = simulated(setup)
    nothing_usable(fake)
    with pytest.raises(Diverged, match="no reply could be used"):
        federation(setup, engine).run()


def restarting(clock: FakeClock, handle: Handler, seconds: float) -> Handler:
    """A node whose process is being started again for some time."""
    return lambda request: (
        Message(Error(0, "The process is restarting"), reply_to=request) if clock.now < seconds else handle(request)
    )


@pytest.mark.parametrize("seconds", [30, 600])
def test_in_a_simulation_a_restarting_process_is_waited_for_but_not_forever(
    seconds: float, simulated: Open, clock: FakeClock
) -> None:
    setup = tiny_setup(rounds=2)
    engine, fake = simulated(setup)
    assert clients(train(engine)) == ([0, 1, 2], [])  # all are known
    node = fake.grid.nodes[101]
    node.handle = restarting(clock, node.handle, seconds)
    if seconds < 60:
        assert clients(train(engine, 2)) == ([0, 1, 2], [])
    else:
        with pytest.raises(RunError, match=r"client 1: failed 12 times in a row; .* restarting"):
            train(engine, 2)


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
        assert any("client 1: its node was restarted" in message for message in caplog.messages)


def test_a_site_that_refuses_is_missing_with_its_own_words(opened: Open) -> None:
    setup = tiny_setup(rounds=1)
    engine, fake = opened(setup)
    node = fake.grid.nodes[102]
    node.handle = corrupting(node.handle, lambda r: (r.clear(), r.update(refusal=ConfigRecord({"kind": "RunError", "message": "disk full"})))[0])  # fmt: skip  # noqa: E501
    loop = federation(setup, engine)
    loop.run()
    assert loop.history[1].missing == {2: "the site does not take part: disk full"}


def saved(engine: SimulationEngine, folder: Path) -> list[str]:
    """The files of a checkpoint."""
    folder.mkdir()
    engine.save(folder)
    return sorted(path.name for path in folder.iterdir())


def test_clients_that_have_not_moved_are_neither_saved_nor_evaluated_again(opened: Open, tmp_path: Path) -> None:
    setup = tiny_setup(method={"name": "fedl2g-f", "warmup_rounds": 1})
    engine, fake = opened(setup)
    before = engine.evaluate([0, 1, 2], {})
    assert [answer.report.steps for answer in train(engine)] == [0, 0, 0]
    assert engine.evaluate([0, 1, 2], {}) == before
    assert saved(engine, tmp_path / "warm-up") == []
    assert all(answer.report.steps for answer in train(engine, 2))
    engine.evaluate([0, 1, 2], {})
    assert all(node.received.count("evaluate") == 1 for node in fake.grid.nodes.values())
    assert len(saved(engine, tmp_path / "trained")) == 3


@pytest.mark.parametrize(
    ("settings", "requests"),
    [
        ({"method": {"name": "fedl2g-f", "warmup_rounds": 0}}, [1, 1, 1]),
        ({"method": "fedgh"}, [4, 4, 4]),  # what its server sends after a round changes its predictions
        ({"method": "local", "evaluate_every": 2}, [1, 1, 1]),
        ({"method": "local", "validation_fraction": 0.2}, [1, 1, 1]),
        ({"method": "local", "participation": 0.3}, None),  # who did not train is not asked again either
        ({"method": "local", "evaluate_clients": 2}, None),
    ],
)
def test_the_evaluation_comes_with_the_trained_round_if_it_needs_nothing_of_the_server(
    settings: dict[str, Any], requests: list[int] | None, opened: Open
) -> None:
    setup = tiny_setup(rounds=3, **settings)
    engine, fake = opened(setup)
    ours, theirs = federation(setup, engine), federation(setup, InlineEngine(setup))
    ours.run()
    theirs.run()
    assert [record.accuracy for record in ours.history] == [record.accuracy for record in theirs.history]
    found = [node.received.count("evaluate") for node in fake.grid.nodes.values()]
    assert found == requests if requests else max(found) <= 1 + (setup.experiment.evaluated_per_round < 3)


@pytest.mark.parametrize(
    "settings",
    [{"rounds": 3, "evaluate_every": 3}, {"method": {"name": "fedl2g-f", "warmup_rounds": 1}}],
    ids=["no evaluation", "nothing moved"],
)
def test_an_evaluation_that_is_not_due_is_refused(
    settings: dict[str, Any], opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    engine, fake = opened(tiny_setup(**settings))
    undue = pack_evaluation(engine.run, 1, Evaluation(2, 10, 10, {}, 1.0, 1.0))
    fake.grid.nodes[102].handle = corrupting(honest(fake.root, 2), lambda records: records.update(undue))
    assert clients(train(engine)) == ([0, 1, 2], [])
    assert "the evaluation from client 2 is refused: evaluation: none is due" in caplog.text
    found = {evaluation.client: evaluation for evaluation in engine.evaluate([0, 1, 2], {})}
    assert found[2].correct != 10


def test_an_evaluation_that_fails_loses_no_upload(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, fake = opened(tiny_setup())
    evaluate = Node.evaluate
    failures = iter([MemoryError])

    def fail_once(node: Node, request: Request) -> Evaluation:
        if node.client == 2 and next(failures, None):
            raise MemoryError
        return evaluate(node, request)

    monkeypatch.setattr(Node, "evaluate", fail_once)
    assert clients(train(engine)) == ([0, 1, 2], [])
    assert [evaluation.client for evaluation in engine.evaluate([0, 1, 2], {})] == [0, 1, 2]
    assert [node.received.count("evaluate") for node in fake.grid.nodes.values()] == [0, 0, 1]


def test_a_client_whose_reply_was_refused_has_trained_and_is_saved(simulated: Open, tmp_path: Path) -> None:
    setup = tiny_setup(replies={"maximum_mb": 0.001, "below_minimum": "skip"})
    engine, fake = simulated(setup)
    fake.grid.nodes[102].handle = lambda request, inner=fake.grid.nodes[102].handle: (
        Message(Error(8, "killed"), reply_to=request) if request.metadata.message_type == "train" else inner(request)
    )
    with pytest.raises(RunError, match="client 2: failed 12 times"):  # it never trained
        train(engine)
    assert saved(engine, tmp_path / "saved") == ["client-000000.safetensors", "client-000001.safetensors"]
    engine.restore(tmp_path / "saved")
    assert saved(engine, tmp_path / "again") == ["client-000000.safetensors", "client-000001.safetensors"]


def test_a_deployment_retries_and_keeps_no_model(clock: FakeClock, tmp_path: Path) -> None:
    setup = tiny_setup()
    grid: Any = FakeGrid({}, clock)
    engine, other = DeploymentEngine(grid, setup, {}), DeploymentEngine(grid, setup, {})
    assert (engine.retries, engine.lanes) == (True, 3)
    engine.round = 7
    engine.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["nodes.json"]
    other.restore(tmp_path)
    assert (other.run, other.round) == (engine.run, 7)
    other.restore(None)
    assert other.run != engine.run
    assert other.round == 0
    with pytest.raises(RunError, match="was not written by a deployment"):
        other.restore(tmp_path / "nowhere")


def test_a_simulation_leaves_unusable_replies_to_the_federation(simulated: Open) -> None:
    engine, _ = simulated(tiny_setup())
    assert (engine.retries, engine.lanes) == (False, 3)
    assert isinstance(engine.terms.attempts, int)
