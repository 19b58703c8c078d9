"""Clients beyond the memory budget wait on disk, and no number tells; checkpoints share their files."""

from __future__ import annotations

import errno
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors import SafetensorError

import fedl2g
from fedl2g.engines import states
from fedl2g.engines.host import memory_budget
from fedl2g.engines.inline import InlineEngine
from fedl2g.engines.states import StateStore, client_file, stored_shapes
from fedl2g.errors import PayloadError, RunError
from fedl2g.federation import Federation, Observer
from fedl2g.methods.registry import get_method
from fedl2g.references import load_plugin
from fedl2g.round.record import RoundRecord


def federation_of(setup: Any, budget: int | None = None, *observers: Observer) -> Federation:
    server = get_method(setup.experiment.method.name).server(setup.experiment.method, setup.task)
    engine = InlineEngine(setup)
    if budget is not None:
        engine.host.budget = budget
    return Federation(setup.experiment, server, engine, observers)


def bits(federation: Federation, directory: Path) -> dict[str, Any]:
    directory.mkdir()
    federation.engine.save(directory)
    tensors, values = federation.state_dict()
    return {
        "records": [{k: v for k, v in r.items() if "seconds" not in k} for r in values["history"]],
        "server": {name: tensor.numpy().tobytes() for name, tensor in tensors.items()},
        "clients": {file.name: file.read_bytes() for file in sorted(directory.iterdir())},
    }


# A user's network whose head counts its batches: what a method's half finds in a fresh one must be a fresh one's.
FACTORY = """
from torch import nn

def network(classes, image_shape, feature_dim):
    pixels = image_shape[0] * image_shape[1] * image_shape[2]
    extractor = nn.Sequential(nn.Flatten(), nn.Linear(pixels, feature_dim), nn.ReLU())
    return extractor, nn.Sequential(nn.BatchNorm1d(feature_dim), nn.Linear(feature_dim, classes))
"""


@pytest.mark.parametrize(
    ("method", "models"),
    [(name, "small_cnn,small_resnet") for name in ("fedl2g-f", "fedproto", "fedkd", "fedmrl", "lg-fedavg")]
    + [("lg-fedavg", "counting_head:network")],
)
def test_a_tiny_budget_changes_no_bit(
    method: str, models: str, tiny: Any, site_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "counting_head.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(tmp_path)
    options = {"name": method, **({"warmup_rounds": 0} if method == "fedl2g-f" else {})}
    setup = site_of(tiny(method=options, models=models))
    found = []
    for budget in (None, 1):
        federation = federation_of(setup, budget)
        federation.run()
        host = federation.engine.host  # type: ignore[attr-defined]
        assert len(host._halves) == (setup.experiment.clients if budget is None else 1)
        found.append(bits(federation, tmp_path / str(budget)))
        federation.engine.close()
    assert found[0] == found[1]


def test_a_known_evaluation_brings_no_client_back(tiny: Any, site_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = federation_of(site_of(tiny(method={"name": "local"}, participation=1, rounds=1)), 1)
    federation.run()
    engine, asked = federation.engine, []
    host = engine.host  # type: ignore[attr-defined]
    clients = range(federation.experiment.clients)
    for owner, name in ((host, "_build"), (StateStore, "read"), (StateStore, "read_ahead")):
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, name=name, do=original: (asked.append((name, a[-1])), do(*a))[1])
    before = engine.evaluate(clients, {})
    assert not asked
    host._evaluations.pop(3)
    assert engine.evaluate(clients, {}) == before
    assert {client for _, client in asked} == {3}
    engine.close()


def test_a_budget_between_keeps_the_last_used(tiny: Any, site_of: Any) -> None:
    engine = InlineEngine(site_of(tiny(models="small_cnn")))
    host = engine.host
    host.half(0)
    host.budget = 2 * host._taken
    for client in (1, 0, 2):
        host.half(client)
    assert list(host._halves) == [0, 2]
    engine.close()


def test_what_a_client_takes(tiny: Any, site_of: Any) -> None:
    federation = federation_of(site_of(tiny(method={"name": "fedproto"}, models="small_cnn", rounds=1)))
    host = federation.engine.host  # type: ignore[attr-defined]
    model = host.half(0).model
    values = sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
    assert host._bytes == {"small_cnn": values + 4096 * len(list(model.modules()))}
    federation.run()
    targets = host.half(0).prototypes  # kept from the first evaluation on, outside any network
    assert host._bytes["small_cnn"] == values + 4096 * len(list(model.modules())) + sum(
        t.nbytes for t in (targets.vectors, targets.known)
    )
    assert host._taken == 5 * host._bytes["small_cnn"]
    federation.engine.close()
    guided = InlineEngine(site_of(tiny(models="small_cnn")))  # its views of the images count for nothing
    guided.host.half(0)
    assert guided.host._bytes == {"small_cnn": values + 4096 * len(list(model.modules()))}
    guided.close()


@pytest.mark.parametrize(("limit", "expected"), [("max", 5_000_000), ("1000000", 300_000), ("9000000", 5_000_000)])
def test_memory_left_in_a_container(limit: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "_CGROUPS", tmp_path)
    monkeypatch.setattr(states, "_machine_bytes", lambda: 5_000_000)
    for name, text in (("max", limit), ("current", "800000"), ("stat", "anon 700000\ninactive_file 100000")):
        (tmp_path / f"memory.{name}").write_text(text + "\n")
    assert states.available_bytes() == expected


def test_memory_of_gpus_is_shared_by_their_workers(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1200 * (1 + device.index), 10_000))
    experiment = tiny(device="cuda:0,cuda:1")
    assert [memory_budget(experiment, torch.device("cuda", index), hosts=3) for index in (0, 1)] == [300, 1200]
    experiment = tiny(device="cuda:0,cuda:1", execution={"memory_mb": 3})
    assert memory_budget(experiment, torch.device("cuda:0"), hosts=3) == 2**20


def test_a_run_with_a_budget_is_resumed_to_the_same_bits(tiny: Any, site_of: Any, tmp_path: Path) -> None:
    setup = site_of(tiny())
    whole = federation_of(setup)
    whole.run()

    class Stop(Observer):
        def on_round(self, federation: Federation, record: RoundRecord) -> None:
            if record.round == 2:
                federation.stop("here")

    first = federation_of(setup, 1, Stop())
    first.run()
    (tmp_path / "saved").mkdir()
    first.engine.save(tmp_path / "saved")
    tensors, values = first.state_dict()
    second = federation_of(setup, 1)
    second.engine.restore(tmp_path / "saved")
    assert not second.engine.host._halves  # type: ignore[attr-defined]  # read when they are needed
    first.engine.close()
    second.load_state_dict({name: t.clone() for name, t in tensors.items()}, values)
    second.run()
    assert bits(second, tmp_path / "second") == bits(whole, tmp_path / "whole")


def test_a_state_that_does_not_fit_is_refused_at_once(tiny: Any, site_of: Any, tmp_path: Path) -> None:
    federation = federation_of(site_of(tiny(rounds=1, participation=1)))
    federation.run()
    federation.engine.save(tmp_path)
    shutil.copy(tmp_path / "client-000001.safetensors", tmp_path / "client-000000.safetensors")
    with pytest.raises(PayloadError, match=r"client-000000\.safetensors does not fit a client with small_cnn"):
        federation.engine.restore(tmp_path)


def test_checkpoints_share_the_files_of_clients_that_have_not_moved(tiny: Any, tmp_path: Path) -> None:
    experiment = tiny(rounds=2, clients=5, participation=0.4, execution={"checkpoint_every": 1})
    fedl2g.run(experiment, tmp_path / "run")
    before, after = (tmp_path / "run/checkpoints" / name for name in ("round-000001", "round-000002"))
    moved = {int(line) for line in _participants(tmp_path / "run", 2)}
    shared = 0
    for path in before.glob("client-*"):
        same = path.samefile(after / path.name)
        assert same == (int(path.stem.removeprefix("client-")) not in moved)
        shared += same
    assert shared > 0
    assert not (tmp_path / "run/scratch").exists()


def _participants(run: Path, round: int) -> list[int]:
    from fedl2g.runs.directory import RunDirectory

    return next(r.participants for r in RunDirectory(run).history() if r.round == round)


def test_a_file_is_replaced_and_never_changed(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "store")
    store.write(3, {"a": torch.zeros(2)})
    store.export(3, tmp_path / "kept")
    store.write_behind(3, {"a": torch.ones(2)})
    assert store.read(3)["a"].tolist() == [1, 1]  # wherever it is on its way
    store.export(3, tmp_path / "new")
    assert safetensors.torch.load_file(tmp_path / "kept")["a"].tolist() == [0, 0]
    assert safetensors.torch.load_file(tmp_path / "new")["a"].tolist() == [1, 1]
    assert stored_shapes(tmp_path / "new") == {"a": (2,)}
    store.close()
    assert not (tmp_path / "store").exists()


def test_many_states_are_written_behind_and_read_ahead(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "store")
    for client in range(30):
        store.write_behind(client, {"a": torch.full((4,), client)})
    for client in range(30):
        store.read_ahead(client + 1)
        assert store.read(client)["a"].tolist() == [client] * 4
    assert 30 not in store
    store.clear()
    assert 3 not in store


def test_large_states_wait_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = safetensors.torch.save_file
    monkeypatch.setattr(safetensors.torch, "save_file", lambda *given: (time.sleep(0.05), save(*given)))
    monkeypatch.setattr(states, "_WAITING_BYTES", 100)
    store = StateStore(tmp_path / "store")
    for client in range(4):
        store.write_behind(client, {"a": torch.zeros(20)})
        assert list(store._writing) == [client]
    store.close()


def test_without_links_files_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.EXDEV, "another disk")

    monkeypatch.setattr(os, "link", refuse)
    store = StateStore(tmp_path / "store")
    store.write(0, {"a": torch.zeros(2)})
    store.export(0, tmp_path / "copy")
    assert not (tmp_path / "copy").samefile(client_file(tmp_path / "store", 0))
    other = StateStore()
    other.adopt(0, tmp_path / "copy")
    assert other.read(0)["a"].tolist() == [0, 0]
    other.close()


def test_a_full_disk_is_met_where_the_state_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = StateStore(tmp_path / "store")
    with monkeypatch.context() as patch:
        patch.setattr(safetensors.torch, "save_file", full)
        store.write_behind(0, {"a": torch.zeros(2)})
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                store.export(0, tmp_path / "x")
        assert store.read(0)["a"].tolist() == [0, 0]  # the only copy is not lost
    store.export(0, tmp_path / "x")  # there is room again
    assert safetensors.torch.load_file(tmp_path / "x")["a"].tolist() == [0, 0]
    assert not store._writing


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), SafetensorError("No space left on d")]
)
def test_a_full_disk_while_clients_make_room_is_one_sentence(
    error: Exception, tiny: Any, site_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise error

    scratch = tmp_path / "run/scratch"
    setup = replace(site_of(tiny(method={"name": "local"}, rounds=1)), scratch=scratch)
    engine = InlineEngine(setup)
    host = engine.host
    host.budget = 1
    sentence = (
        f"cannot write the state of a client in {scratch}: No space left on d.*; the last checkpoint is intact: make "
        f"room, then continue with `fedl2g resume {scratch.parent}`"
    )
    with monkeypatch.context() as patch:
        patch.setattr(safetensors.torch, "save_file", fail)
        patch.setattr(states, "_WAITING", 1)  # the failure is met at the next state, not when the thread has come to it
        with pytest.raises(RunError, match=f"^{sentence}$"):
            list(engine.train(1, range(5), {}))
    trained = [client for client in range(5) if client in host._changed]
    assert all(client in host._halves or client in host._store._writing for client in trained)
    assert set(host._halves) >= host._unsaved
    assert host._taken == sum(host._bytes[setup.architecture(client)] for client in host._halves)
    kept = {client: host.state(client) for client in trained}  # nobody was lost, and there is room again
    host.half(4)
    for client, state in kept.items():
        assert all(torch.equal(state[name], tensor) for name, tensor in host.state(client).items())
    monkeypatch.setattr(safetensors.torch, "load_file", fail)
    with pytest.raises(RunError, match=f"^cannot read the state of a client in {scratch}: .*: continue with"):
        [host.half(client) for client in trained]
    engine.close()


FULL_DISK = """
import errno, sys
import safetensors.torch
from fedl2g.engines import host, states

def full(tensors, path):
    raise OSError(errno.ENOSPC, "No space left on device")

if any("fedl2g.engines.worker" in part for part in sys.orig_argv):
    safetensors.torch.save_file = full
    states._WAITING = 1
    host.memory_budget = lambda *args, **kwargs: 1
"""


def test_a_worker_says_it_with_the_same_sentence(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "full_disk.py").write_text(FULL_DISK)
    monkeypatch.setattr("fedl2g.references._plugins", [])
    load_plugin(str(tmp_path / "full_disk.py"))
    experiment = tiny(participation=1, rounds=1, execution={"engine": "workers", "workers": 1})
    with pytest.raises(RunError, match=r"^cannot write the state of a client in .*: No space left .* resume \S*run`$"):
        fedl2g.run(experiment, tmp_path / "run")


def test_a_sample_of_the_clients_is_evaluated_and_recorded(tiny: Any, site_of: Any) -> None:
    found = []
    for _ in range(2):
        federation = federation_of(site_of(tiny(evaluate_clients=2)))
        federation.run()
        found.append([sorted(r.accuracy.clients) for r in federation.history if r.accuracy])
    assert found[0] == found[1]
    assert all(len(clients) == 2 for clients in found[0])
    assert len({tuple(clients) for clients in found[0]}) > 1
    assert tiny(evaluate_clients=0.4).evaluated_per_round == 2
    assert tiny(evaluate_clients=100).evaluated_per_round == 5
    with pytest.raises(fedl2g.errors.SettingError, match="neither a whole number of clients nor a share"):
        tiny(evaluate_clients=2.5)
