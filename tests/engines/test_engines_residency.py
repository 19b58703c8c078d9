"""Clients beyond the memory budget wait on disk, and no number tells; nobody is lost when the disk is full."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from engine_helpers import bits, federation_of, inline, tiny_setup
from safetensors import SafetensorError

import fedl2g
from endings import StopAfter
from fedl2g.engines.inline import InlineEngine
from fedl2g.engines.residency import Residency, bytes_of, state_of
from fedl2g.engines.states import State, StateStore
from fedl2g.engines.workers import WorkersEngine
from fedl2g.errors import PayloadError, RunError
from fedl2g.federation import Federation, Observer
from fedl2g.learning.client import Task
from fedl2g.round.record import RoundRecord
from fedl2g.runs.directory import RunDirectory
from five_clients import tiny

pytestmark = pytest.mark.usefixtures("kept_workers")

# A user's network whose head counts its batches: what a method's half finds in a fresh one must be a fresh one's.
FACTORY = """
from torch import nn

def network(classes, image_shape, feature_dim):
    pixels = image_shape[0] * image_shape[1] * image_shape[2]
    extractor = nn.Sequential(nn.Flatten(), nn.Linear(pixels, feature_dim), nn.ReLU())
    return extractor, nn.Sequential(nn.BatchNorm1d(feature_dim), nn.Linear(feature_dim, classes))
"""


def in_memory(clients: Residency, count: int = 5) -> list[int]:
    return [client for client in range(count) if client in clients]


@pytest.mark.parametrize(
    ("method", "models"),
    [(name, "small_cnn,small_resnet") for name in ("fedl2g-f", "fedproto", "fedkd", "fedmrl", "lg-fedavg")]
    + [("lg-fedavg", "counting_head:network")],
)
def test_a_tiny_budget_changes_no_bit(
    method: str, models: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "counting_head.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(tmp_path)
    options = {"name": method, **({"warmup_rounds": 0} if method == "fedl2g-f" else {})}
    setup = tiny_setup(method=options, models=models)
    found = []
    for budget in (None, 1):
        engine = inline(setup, budget)
        federation = federation_of(setup, engine)
        federation.run()
        assert len(engine.host.clients) == (setup.experiment.clients if budget is None else 1)
        found.append(bits(federation, tmp_path / str(budget)))
        engine.close()
    assert found[0] == found[1]


def test_a_budget_between_keeps_the_last_used() -> None:
    engine = inline(tiny_setup(models="small_cnn"))
    clients = engine.host.clients
    clients.budget = 2 * bytes_of(engine.host.half(0))
    for client in (1, 0, 2):
        engine.host.half(client)
    assert in_memory(clients) == [0, 2]
    assert len(clients) == 2
    engine.close()


class Weigh(Observer):
    """After each round, the memory that the clients really take."""

    def __init__(self) -> None:
        self.found: list[tuple[int, int]] = []

    def on_round(self, federation: Federation, record: RoundRecord) -> None:
        assert isinstance(federation.engine, InlineEngine)
        clients = federation.engine.host.clients
        present = in_memory(clients)
        self.found.append((len(present), sum(bytes_of(clients.get(client)) for client in present)))


@pytest.mark.parametrize("method", ["fedproto", "fedkd", "lg-fedavg", "local"])
def test_the_clients_take_no_more_than_the_budget(method: str) -> None:
    setup = tiny_setup(method={"name": method}, participation=1)
    engine = inline(setup)
    federation = federation_of(setup, engine)
    federation.run()
    each = [bytes_of(engine.host.half(client)) for client in range(5)]
    engine.close()
    for budget in (sum(each) - 1, 3 * max(each), max(each)):
        weigh = Weigh()
        engine = inline(setup, budget)
        federation_of(setup, engine, weigh).run()
        engine.close()
        # What a client takes once it was used is learnt from the first that is used: from then on the bound holds.
        assert all(taken <= budget for _, taken in weigh.found[1:])
        assert all(0 < count < 5 for count, _ in weigh.found[1:])


def test_what_a_client_takes() -> None:
    setup = tiny_setup(method={"name": "fedproto"}, models="small_cnn", rounds=1)
    engine = inline(setup)
    half: Any = engine.host.half(0)
    model = half.model
    values = sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
    fresh = bytes_of(half)
    assert fresh == values + 4096 * (
        len(list(model.modules())) + 4
    )  # the three that hold it, and the preparation of inputs
    federation_of(setup, engine).run()
    targets = half.prototypes  # kept from the first evaluation on, outside any network
    assert bytes_of(half) == fresh + targets.vectors.nbytes + targets.known.nbytes + 4096
    engine.close()
    for method in (
        {"name": "fedl2g-f", "warmup_rounds": 0},
        {"name": "local"},
    ):  # views of the images, which all share, count for nothing
        guided = inline(tiny_setup(models="small_cnn", method=method))
        assert bytes_of(guided.host.half(0)) == fresh
        guided.close()


def test_a_cached_evaluation_loads_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = tiny_setup(method={"name": "local"}, participation=1, rounds=1)
    engine = inline(setup, 1)
    federation_of(setup, engine).run()
    asked: list[tuple[str, int]] = []
    for owner, name in ((Task, "build"), (StateStore, "read"), (StateStore, "read_ahead")):
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, name=name, do=original: (asked.append((name, a[-1])), do(*a))[1])
    before, present = engine.evaluate(range(5), {}), in_memory(engine.host.clients)
    assert not asked
    engine.host.load_state(3, engine.host.state(3))  # the client has moved, as far as anybody knows,
    engine.host.half(0)  # and is not in memory
    asked.clear()
    assert engine.evaluate(range(5), {}) == before
    assert {client for _, client in asked} == {3}
    assert present != in_memory(engine.host.clients) == [3]
    engine.close()


class Watched(StateStore):
    """Notes who is read, and when."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.notes: list[str] = []

    def read_ahead(self, client: int) -> None:
        self.notes.append(f"ahead {client}")
        super().read_ahead(client)

    def read(self, client: int) -> State:
        self.notes.append(f"read {client}")
        return super().read(client)


def _residency(store: StateStore, budget: int = 1) -> Residency:
    engine = inline(tiny_setup(method={"name": "local"}, models="small_cnn"))
    return Residency(lambda client: engine.host.half(client), lambda client: "small_cnn", budget, store)


def test_the_next_client_is_read_while_one_is_used(tmp_path: Path) -> None:
    store = Watched(tmp_path / "store")
    clients = _residency(store)
    for client in range(3):
        clients.get(client)
        clients.changed(client)
    clients.get(3)
    store.notes.clear()
    clients.expect([0, 1, 2])
    for client in range(3):
        clients.get(client)
    assert store.notes == ["read 0", "ahead 1", "read 1", "ahead 2", "read 2"]
    clients.close()


def test_only_clients_that_have_moved_are_written(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "store")
    clients = _residency(store)
    for client in range(4):
        clients.get(client)
        if client in (0, 2):
            clients.changed(client)
    assert [client for client in range(4) if client in store] == [0, 2]
    (tmp_path / "saved").mkdir()
    clients.save(tmp_path / "saved")
    assert sorted(p.name for p in (tmp_path / "saved").iterdir()) == [
        "client-000000.safetensors",
        "client-000002.safetensors",
    ]
    assert len(list((tmp_path / "store").iterdir())) == 2
    clients.close()
    assert len(clients) == 0
    assert not (tmp_path / "store").exists()


def test_an_evicted_state_is_restored_unchanged(tmp_path: Path) -> None:
    clients = _residency(StateStore(tmp_path / "store"))
    with torch.no_grad():
        for parameter in clients.get(0).model.parameters():
            parameter.add_(1.5)
    clients.changed(0)
    left = state_of(clients.get(0))
    clients.get(1)
    assert 0 not in clients
    assert all(torch.equal(left[name], tensor) for name, tensor in clients.state(0).items())
    clients.load(1, left)
    clients.get(0)
    assert all(torch.equal(left[name], tensor) for name, tensor in clients.state(1).items())
    clients.close()


def test_a_run_with_a_budget_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    setup = tiny_setup()
    whole = federation_of(setup, inline(setup))
    whole.run()

    first = federation_of(setup, inline(setup, 1), StopAfter(2))
    first.run()
    (tmp_path / "saved").mkdir()
    first.engine.save(tmp_path / "saved")
    tensors, values = first.state_dict()
    engine = inline(setup, 1)
    second = federation_of(setup, engine)
    engine.restore(tmp_path / "saved")
    assert len(engine.host.clients) == 0  # read when they are needed
    first.engine.close()
    second.load_state_dict({name: t.clone() for name, t in tensors.items()}, values)
    second.run()
    assert bits(second, tmp_path / "second") == bits(whole, tmp_path / "whole")


def test_a_state_that_does_not_fit_is_refused_at_once(tmp_path: Path) -> None:
    setup = tiny_setup(rounds=1, participation=1)
    federation = federation_of(setup, inline(setup))
    federation.run()
    federation.engine.save(tmp_path)
    shutil.copy(tmp_path / "client-000001.safetensors", tmp_path / "client-000000.safetensors")
    with pytest.raises(
        PayloadError, match=r"client-000000\.safetensors: its tensors do not match a client with small_cnn"
    ):
        federation.engine.restore(tmp_path)


def test_a_host_takes_the_states_of_its_own_clients_alone(tmp_path: Path) -> None:
    setup = tiny_setup(method={"name": "local"})
    engine = inline(setup)
    fresh = engine.host.state(3)
    list(engine.train(1, range(5), {}, lambda reply: None))
    trained = engine.host.state(1)
    engine.save(tmp_path)
    engine.host.restore(tmp_path, frozenset({1, 4}))
    assert all(torch.equal(trained[name], tensor) for name, tensor in engine.host.state(1).items())
    assert all(torch.equal(fresh[name], tensor) for name, tensor in engine.host.state(3).items())
    engine.close()


def test_checkpoints_share_the_files_of_clients_that_have_not_moved(tmp_path: Path) -> None:
    experiment = tiny(rounds=2, participation=0.4, execution={"checkpoint_every": 1})
    fedl2g.run(experiment, tmp_path / "run")
    before, after = (tmp_path / "run/checkpoints" / name for name in ("round-000001", "round-000002"))
    (moved,) = (r.participants for r in RunDirectory(tmp_path / "run").history() if r.round == 2)
    shared = 0
    for path in before.glob("client-*"):
        same = path.samefile(after / path.name)
        assert same == (int(path.stem.removeprefix("client-")) not in moved)
        shared += same
    assert shared > 0
    assert not (tmp_path / "run/scratch").exists()


MANY = 14  # more than may wait for the disk: at the latest then its failure is met


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), SafetensorError("No space left on d")]
)
def test_a_full_disk_while_clients_make_room_is_one_sentence_and_loses_nobody(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise error

    setup = tiny_setup(method={"name": "local"}, models="small_cnn", rounds=1, clients=MANY)
    fresh, roomy = inline(setup), inline(setup)
    _train(roomy, [])
    scratch = tmp_path / "run/scratch"
    engine = inline(setup, 1, scratch)
    sentence = (
        f"{scratch}: the state of a client cannot be written .No space left on d.*; the last checkpoint is intact; "
        f"make room, then continue with `fedl2g resume {scratch.parent}`"
    )
    trained: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(safetensors.torch, "save_file", fail)
        with pytest.raises(RunError, match=f"^{sentence}$"):
            _train(engine, trained)
    assert 0 < len(trained) < MANY
    for _ in range(2):  # there is room again: nobody was lost
        for client in range(MANY):
            expected = (roomy if client in trained else fresh).host.state(client)
            found = engine.host.state(client)
            assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert len(engine.host.clients) == 1
    monkeypatch.setattr(safetensors.torch, "load_file", fail)
    engine.host.save(_made(tmp_path / "saved"))  # what is being written has reached its files
    with pytest.raises(RunError, match=f"^{scratch}: the state of a client cannot be read .*; continue with"):
        _use(engine, trained)
    for used in (engine, roomy, fresh):
        used.close()


def _train(engine: InlineEngine, done: list[int]) -> None:
    """Notes who has trained, also where an error ends it."""
    for reply in engine.train(1, range(MANY), {}, lambda reply: None):
        done.append(reply.client)  # noqa: PERF401


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _use(engine: InlineEngine, clients: Sequence[int]) -> None:
    for client in clients:
        engine.host.half(client)


def test_a_worker_reports_it_with_the_same_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the folder for states lies a file: the first client that must make room cannot be written."""
    monkeypatch.setattr("fedl2g.engines.workers.step_seconds", lambda *a, **k: 1.0)  # measured for nothing here
    scratch = _made(tmp_path / "run") / "scratch"
    scratch.write_text("in the way")
    setup = tiny_setup(
        method={"name": "local"},
        models="small_resnet",  # 0.2 MB each: not all fit in 1 MB
        clients=8,
        execution={"engine": "workers", "workers": 1, "memory_mb": 1},
    )
    engine = WorkersEngine(setup, scratch)
    sentence = (
        rf"^{scratch}: the state of a client cannot be written .*; the last checkpoint .* resume {scratch.parent}`$"
    )
    with pytest.raises(RunError, match=sentence):
        list(engine.train(1, range(8), {}, lambda reply: None))
    engine.close()
