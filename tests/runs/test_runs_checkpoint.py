"""The layout of checkpoints: found by number, read with their digests, by everybody through one module."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import fedl2g
from fedl2g.deploy.export import export_client
from fedl2g.engines.states import client_file, client_files
from fedl2g.errors import RunError
from fedl2g.experiment import Experiment
from fedl2g.report.collect import read_runs
from fedl2g.report.embedding import embed
from fedl2g.runs.checkpoint import Checkpoint, Damaged, checkpoint_path, checkpoints, newest
from fedl2g.runs.directory import RunDirectory


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("finished") / "run"
    settings = {"samples": 80, "partition": "iid", "clients": 3, "rounds": 2, "participation": 0.7}
    execution = {"checkpoint_every": 1}
    fedl2g.run(Experiment(**settings, method="fedproto", models="small_cnn", execution=execution), path)
    return path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def newest_of(run: Path) -> Checkpoint:
    found = newest(RunDirectory(run).checkpoints)
    assert found is not None
    return found


def flip(path: Path, place: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_checkpoints_are_ordered_as_numbers(tmp_path: Path) -> None:
    for round in (1_000_000, 7, 999_999, 10_000_000):
        checkpoint_path(tmp_path, round).mkdir()
    for other in ("round-", "round-x", "round-²²²²²²", ".round-000008.partial-3", "other"):
        (tmp_path / other).mkdir()
    assert [found.round for found in checkpoints(tmp_path)] == [7, 999_999, 1_000_000, 10_000_000]
    assert newest(tmp_path) == Checkpoint(tmp_path / "round-10000000")
    assert newest(tmp_path / "nowhere") is None
    with pytest.raises(RunError, match="not a checkpoint"):
        _ = Checkpoint(tmp_path / "other").round


def test_a_checkpoint_gives_what_was_written(run: Path) -> None:
    found = newest_of(run)
    found.verify()
    trained = client_files(found.path)
    assert len(trained) > 0
    assert (found.round, found.state["round"]) == (2, 2)
    assert found.state["fingerprint"] == RunDirectory(run).about()["fingerprint"]
    assert found.server()
    assert {f"server.{name}" for name in found.server()} <= set(found.tensors())
    for client in trained:
        state = found.client(client)
        assert state is not None
        assert all(name.startswith("model.") for name in state)
        assert all(isinstance(tensor, torch.Tensor) for tensor in state.values())
    assert found.client(99) is None


def test_damage_is_noticed_by_whoever_reads(run: Path, tmp_path: Path) -> None:
    found = newest_of(run)
    client = min(client_files(found.path))
    flip(client_file(found.path, client))
    with pytest.raises(Damaged, match=rf"client-{client:06d}.safetensors is missing or does not match its digest"):
        found.verify()
    with pytest.raises(Damaged, match="does not match its digest"):
        found.client(client)
    with pytest.raises(RunError, match=r"round-000002: the checkpoint is damaged .*; restore it from a copy") as told:
        export_client(run, client, tmp_path / "model", which="last")
    assert (told.value.exit_code, "\n" in str(told.value)) == (2, False)
    assert not (tmp_path / "model").exists()
    assert embed(read_runs([run])[0]) is None  # the report is complete without it
    assert found.server()  # is sound


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"state": 3, "digest": ""}', "[" * 100_000, "\udcff"])
def test_a_state_of_another_kind_is_damage(run: Path, content: str) -> None:
    found = newest_of(run)
    (found.path / "state.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(Damaged, match="damaged"):
        _ = found.state
    with pytest.raises(Damaged):
        found.server()


def test_a_changed_number_of_the_history_is_damage(run: Path) -> None:
    found = newest_of(run)
    sealed = json.loads((found.path / "state.json").read_text())
    sealed["state"]["round"] = 3
    (found.path / "state.json").write_text(json.dumps(sealed))
    with pytest.raises(Damaged, match="does not match its digest"):
        _ = found.state


@pytest.mark.slow
def test_a_model_that_was_exported_is_replaced_whole(run: Path, tmp_path: Path) -> None:
    client = min(client_files(newest_of(run).path))
    for _ in range(2):
        written = export_client(run, client, tmp_path / "model", which="last").files
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == sorted(path.name for path in written)
