"""A client's store on its node's disk: repeated requests, fallen-back servers, damage."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="the optional extra `flower` is not installed")

from fake_grid import tiny_setup

from fedl2g.engines.flower.messages import Request, pack_request, unpack_request
from fedl2g.engines.flower.node import Node
from fedl2g.engines.flower.store import NodeStore, TrainedRound, find_client, stored_model
from fedl2g.engines.host import Host
from fedl2g.errors import PayloadError, RunError, SettingError
from fedl2g.methods.base import Reply
from fedl2g.methods.registry import get_method
from fedl2g.setup import Setup

CPU = torch.device("cpu")


def request(setup: Setup, round: int, scale: float = 1.0) -> Request:
    server = get_method(setup.experiment.method.name).server(setup.experiment.method, setup.task)
    payload = {name: t * scale if t.is_floating_point() else t for name, t in server.broadcast(round).items()}
    return Request("run1", setup.experiment, setup.dataset.class_names, setup.dataset.schema, round, payload)


@pytest.fixture
def setup() -> Setup:
    return tiny_setup()


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rounds in which a host really trained."""
    rounds: list[int] = []
    train = Host.train

    def counted(self: Host, client: int, round: int, payload: dict[str, torch.Tensor]) -> Reply:
        rounds.append(round)
        return train(self, client, round, payload)

    monkeypatch.setattr(Host, "train", counted)
    return rounds


def test_a_repeated_request_is_answered_without_training(setup: Setup, tmp_path: Path, trainings: list[int]) -> None:
    node = Node(1, setup, CPU, tmp_path)
    first, second = node.train(request(setup, 1)), node.train(request(setup, 1))
    assert trainings == [1]
    assert first.report == second.report
    assert all(torch.equal(first.payload[name], second.payload[name]) for name in first.payload)


def test_a_server_that_fell_back_is_served_from_the_round_before(
    setup: Setup, tmp_path: Path, trainings: list[int]
) -> None:
    node = Node(1, setup, CPU, tmp_path)
    for number in (1, 2, 3):
        node.train(request(setup, number))
    node.train(request(setup, 2))
    node.train(request(setup, 3))
    assert trainings == [1, 2, 3]
    assert NodeStore(tmp_path, "run1", setup.experiment.fingerprint_with(None), 1).rounds() == [2, 3]


def test_another_request_for_a_trained_round_starts_from_the_state_before_it(
    setup: Setup, tmp_path: Path, trainings: list[int]
) -> None:
    node, twin = Node(1, setup, CPU, tmp_path / "a"), Node(1, setup, CPU, tmp_path / "b")
    node.train(request(setup, 1))
    node.train(request(setup, 2))
    changed = node.train(request(setup, 2, scale=0.5))
    twin.train(request(setup, 1))
    expected = twin.train(request(setup, 2, scale=0.5))
    assert all(torch.equal(changed.payload[name], expected.payload[name]) for name in expected.payload)


def test_a_state_that_is_no_longer_kept_is_refused_in_words(setup: Setup, tmp_path: Path) -> None:
    node = Node(1, setup, CPU, tmp_path)
    for number in (1, 2, 3):
        node.train(request(setup, number))
    with pytest.raises(RunError, match="only goes back to round 2"):
        node.train(request(setup, 1))


def test_evaluation_uses_the_state_after_the_round_asked_for(setup: Setup, tmp_path: Path) -> None:
    node, fresh = Node(1, setup, CPU, tmp_path / "a"), Node(1, setup, CPU, tmp_path / "b")
    fresh.train(request(setup, 1))
    after_one = fresh.evaluate(request(setup, 1))
    node.train(request(setup, 1))
    node.train(request(setup, 2))
    assert node.evaluate(request(setup, 1)) == after_one


def test_a_killed_writer_leaves_the_previous_round(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = NodeStore(tmp_path, "run1", "f", 0)
    store.add(TrainedRound(1, {"w": torch.ones(2)}, None))
    monkeypatch.setattr("fedl2g.files.flush", lambda path: (_ for _ in ()).throw(OSError(28, "No space")))
    with pytest.raises(RunError, match="No space"):
        store.add(TrainedRound(2, {"w": torch.zeros(2)}, None))
    assert store.rounds() == [1]
    assert torch.equal(store.read(1).state["w"], torch.ones(2))


def test_damage_and_foreign_files_are_refused(tmp_path: Path) -> None:
    store = NodeStore(tmp_path, "run1", "f", 0)
    store.add(TrainedRound(1, {"w": torch.ones(2)}, None))
    with pytest.raises(RunError, match="another experiment"):
        NodeStore(tmp_path, "run1", "g", 0).read(1)
    path = next(store.directory.glob("*.safetensors"))
    whole = path.read_bytes()
    for place in (-1, whole.index(b'"run1"') + 1):  # a weight, and a word about them
        changed = bytearray(whole)
        changed[place] ^= 1
        path.write_bytes(changed)
        for read in (lambda: store.read(1), lambda: stored_model(store.folder, "last")):
            with pytest.raises(RunError, match="its digest differs"):
                read()
    path.write_bytes(whole)
    assert torch.equal(stored_model(store.folder, "last").state["w"], torch.ones(2))
    path.write_bytes(whole[:40])
    with pytest.raises(RunError, match="cannot be read"):
        store.read(1)


def test_rounds_are_ordered_as_numbers_and_leftovers_are_removed(tmp_path: Path) -> None:
    store = NodeStore(tmp_path, "run1", "f", 0)
    for number in (999_999, 1_000_000):
        store.add(TrainedRound(number, {"w": torch.full((1,), number)}, None))
    (store.directory / ".round-000001.safetensors.partial-7").write_bytes(b"half")  # of a process that was killed
    with store.lock():
        assert store.rounds() == [999_999, 1_000_000]
    assert sorted(p.name for p in store.directory.glob(".*")) == []
    assert stored_model(find_client(tmp_path, 0), "last").round == 1_000_000
    with pytest.raises(SettingError, match="its runs: run1"):
        find_client(tmp_path, 0, "run2")
    with pytest.raises(SettingError, match="its runs: none"):
        find_client(tmp_path, 1)


def test_requests_arrive_complete_and_malformed_ones_are_refused(setup: Setup) -> None:
    sent = request(setup, 2)
    found = unpack_request(pack_request(sent), 2**20)
    assert found.digest == sent.digest
    assert found.experiment.fingerprint == sent.experiment.fingerprint
    assert (found.round, found.classes, found.inputs) == (2, sent.classes, sent.inputs)
    with pytest.raises(PayloadError, match="at most"):
        unpack_request(pack_request(sent), 10)
    for key, value in (("run", "../x"), ("round", -1), ("experiment", "{}}"), ("experiment", '{"rounds": 0}')):
        records = pack_request(sent)
        records["about"][key] = value  # type: ignore[index]
        with pytest.raises(PayloadError):
            unpack_request(records, 2**20)
