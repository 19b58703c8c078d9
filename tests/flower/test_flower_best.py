"""The best models of a deployment stay at the sites, and a deployed run can be extended: nodes in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedl2g.folder import Folder

pytest.importorskip("flwr", reason="the optional extra `flower` is not installed")

from fake_grid import QUICK, FakeClock, FakeGrid, FakeNode, Handler, register, tiny_setup
from flwr.app import Message
from inline_twin import differences, inline_twin

from fedl2g.deploy import server_app
from fedl2g.deploy.answering import answer
from fedl2g.deploy.practice import write_practice_data
from fedl2g.deploy.registered import read_keys
from fedl2g.deploy.scaffold import Plan, scaffold
from fedl2g.deploy.site_file import read_site
from fedl2g.engines.flower import messages
from fedl2g.engines.flower.identity import pack_identity
from fedl2g.engines.flower.messages import Request
from fedl2g.engines.flower.records import unwrap
from fedl2g.engines.flower.store import NodeStore, TrainedRound, stored_model
from fedl2g.errors import PayloadError, RunError
from fedl2g.round.record import selected_record
from fedl2g.runs.checkpoint import newest
from fedl2g.runs.directory import RunDirectory
from fedl2g.schema import image_schema


def site(folder: Path, name: str) -> Handler:
    """The node of a site, which answers as `fedl2g deploy site` does."""
    file = read_site(folder / "sites" / name / "site.toml", trust=True)

    def handle(request: Message) -> Message:
        kind = request.metadata.message_type
        content = pack_identity(file.client_id) if kind == "query" else answer(file, kind, unwrap(request.content))
        return Message(content, reply_to=request)

    return handle


def change(experiment: Path, old: str, new: str) -> None:
    text = experiment.read_text()
    assert old in text
    experiment.write_text(text.replace(old, new))


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    scaffold(Plan(tmp_path / "fed", ("north", "south"), ("zero", "one"), image_schema(3, 16, 16)))
    write_practice_data(tmp_path / "fed")
    monkeypatch.setattr(server_app, "DEPLOYMENT", QUICK)
    # A site that refuses ends the test instead of being waited for.
    change(tmp_path / "fed/coordinator/experiment.toml", 'below_minimum = "wait"', 'below_minimum = "stop"')
    change(tmp_path / "fed/coordinator/experiment.toml", "deadline_seconds = 3600.0", "deadline_seconds = 20.0")
    register(tmp_path / "fed/coordinator", "north", "south")
    for name in ("north", "south"):
        change(tmp_path / f"fed/sites/{name}/site.toml", 'methods = ["fedl2g-f"', 'methods = ["local", "fedproto"')
    return tmp_path / "fed"


def grid_of(folder: Path) -> Any:
    names, keys = ("north", "south"), read_keys(folder / "coordinator" / "keys.toml", ("north", "south"))
    nodes = {100 + n: FakeNode(site(folder, names[n]), public_key=key) for key, n in keys.items()}
    return FakeGrid(nodes, FakeClock())


@pytest.mark.parametrize("method", ["local", "fedproto"])
def test_sites_keep_the_best_models_and_an_extended_run_is_the_whole_run(
    federation: Path, tmp_path: Path, method: str
) -> None:
    experiment, run = federation / "coordinator" / "experiment.toml", tmp_path / "run"
    change(experiment, "rounds = 100", "rounds = 2")
    change(experiment, "client_lr = 0.01", "client_lr = 0.1")
    change(experiment, 'name = "fedl2g-f"', f'name = "{method}"')
    server_app.run(grid_of(federation), experiment, experiment.with_name("keys.toml"), run)
    change(experiment, "rounds = 2", "rounds = 4")
    grid = grid_of(federation)
    server_app.run(grid, experiment, experiment.with_name("keys.toml"), run)
    inline_twin(federation, experiment, tmp_path / "twin", {})
    assert differences(federation, experiment, run, tmp_path / "twin" / "run") == []
    directory = RunDirectory.open(run)
    best = selected_record(directory.history())
    assert best is not None
    found = newest(directory.checkpoints)
    assert found is not None
    assert found.best is not None
    assert (found.best.round, len(directory.history())) == (best.round, 5)
    assert [node.received[-1] for node in grid.nodes.values()] == ["evaluate.keep"] * 2
    for name in ("north", "south"):
        store = federation / "sites" / name / "store"
        (folder,) = store.glob("*/client-*")
        assert stored_model(Folder(store) / str(folder.relative_to(store)), "best").round == best.round


def trained(store: NodeStore, round: int, value: float) -> None:
    import torch

    store.add(TrainedRound(round, {"w": torch.full((2,), value)}, None))


def test_a_store_keeps_the_best_round_whatever_comes_after_it(tmp_path: Path) -> None:
    store = NodeStore(tmp_path, "run1", "f", 0)
    store.keep_best(0)
    with pytest.raises(RunError, match="had not trained by the best round, 0; take the model of the last"):
        stored_model(store.folder, "best")
    trained(store, 1, 1.0)
    trained(store, 3, 3.0)
    store.keep_best(4)  # evaluated after round 4, in which this client did not train
    for round in range(5, 9):
        trained(store, round, float(round))
    for _ in range(2):
        store.keep_best(4)
        assert (stored_model(store.folder, "best").round, stored_model(store.folder, "last").round) == (4, 8)
        assert stored_model(store.folder, "best").state["w"].tolist() == [3.0, 3.0]
    store.keep_best(8)
    assert stored_model(store.folder, "best").state["w"].tolist() == [8.0, 8.0]
    store.keep_best(4)  # the server fell back
    assert stored_model(store.folder, "best").state["w"].tolist() == [3.0, 3.0]
    assert sorted(path.name for path in store.directory.glob("best-*")) == ["best-000004.safetensors"]


@pytest.mark.parametrize("best", [-1, 2.5, "3", True])
def test_a_request_names_a_round_as_best_or_is_refused(best: Any) -> None:
    setup = tiny_setup()
    request = Request("run1", setup.experiment, ("a", "b"), image_schema(1, 8, 8), 2, {}, best=2)
    records = messages.pack_request(request)
    assert messages.unpack_request(records, 2**20).best == 2
    records["about"]["best"] = best  # type: ignore[index]
    with pytest.raises(PayloadError, match=r"best: .* is not allowed"):
        messages.unpack_request(records, 2**20)
