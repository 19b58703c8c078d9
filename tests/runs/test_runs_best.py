"""The models of the best round are kept beside the last ones, and can be had from a run directory."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fedl2g
from fedl2g.deploy.export import export_client
from fedl2g.engines.states import client_files
from fedl2g.errors import RunError, SettingError
from fedl2g.experiment import Experiment
from fedl2g.round.record import selected_record
from fedl2g.runs.checkpoint import Checkpoint, Damaged, newest
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.models import TrainedModels
from method_settings import without_warmup

Tiny = Callable[..., Experiment]
SMALL: dict[str, Any] = {"samples": 120, "models": "small_cnn", "clients": 3, "partition": "iid", "participation": 0.7}


def newest_of(run: Path) -> Checkpoint:
    found = newest(RunDirectory(run).checkpoints)
    assert found is not None
    return found


def tensors_in(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.glob("*.safetensors"))}


@pytest.fixture(scope="module")
def peaked(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose best round is neither its first nor its last."""
    path = tmp_path_factory.mktemp("peaked") / "run"
    result = fedl2g.run(tiny(rounds=7, client_lr=0.3, method="local", execution__checkpoint_every=4), path)
    assert 0 < result.best_round < 7
    assert result.best_round % 4  # between two checkpoints
    return path


def test_the_kept_models_are_those_of_a_run_that_ended_in_the_best_round(
    tiny: Tiny, peaked: Path, tmp_path: Path
) -> None:
    best = newest_of(peaked).best
    assert best is not None
    fedl2g.run(tiny(rounds=best.round, client_lr=0.3, method="local"), tmp_path / "short")
    short = newest_of(tmp_path / "short")
    assert short.round == best.round
    assert client_files(best.path)
    assert {n: t for n, t in tensors_in(best.path).items() if n != "server.safetensors"} == {
        n: t for n, t in tensors_in(short.path).items() if n != "server.safetensors"
    }
    assert tensors_in(newest_of(peaked).path) != tensors_in(best.path)


@pytest.mark.parametrize("method", ["fedproto", "lg-fedavg", "fedmrl", "fedl2g-l"])
def test_every_loaded_model_predicts_as_it_did_in_its_round(method: str, tmp_path: Path) -> None:
    """The first three predict with what the server sends, some to clients that did not train in that round."""
    fedl2g.run(Experiment(**SMALL, method=without_warmup(method), rounds=3, client_lr=0.1), tmp_path / "run")
    directory = RunDirectory.open(tmp_path / "run")
    history = directory.history()
    selected = selected_record(history)
    models = TrainedModels(directory)
    for found, record in ((models, selected), (models.last, history[-1])):
        assert record is not None
        assert record.accuracy is not None
        assert {client: found.load(client).counts for client in found} == record.accuracy.counts
        assert found.load(0).round == record.round
    assert (list(models), len(models.last)) == ([0, 1, 2], 3)
    assert models.last.best.which == "best"
    with pytest.raises(KeyError):
        models[3]
    with pytest.raises(SettingError, match="numbered 0 to 2"):
        models.load(-1)


def test_a_network_by_its_number_has_the_weights_of_the_checkpoint(peaked: Path) -> None:
    models = TrainedModels(RunDirectory.open(peaked))
    for found, checkpoint in ((models, newest_of(peaked).best), (models.last, newest_of(peaked))):
        assert checkpoint is not None
        state = checkpoint.client(1)
        assert state is not None
        weights = found[1].state_dict()
        assert all(torch.equal(weights[name.removeprefix("model.")], tensor) for name, tensor in state.items())
        assert not found[1].training


def test_without_the_best_models_the_last_ones_are_offered(tiny: Tiny, tmp_path: Path) -> None:
    fedl2g.run(tiny(rounds=1, method="local", execution__keep_best=False), tmp_path / "run")
    assert not list(tmp_path.rglob("best"))
    with pytest.raises(RunError, match=r"holds no models of its best round .*; take those of the last round, --which"):
        export_client(tmp_path / "run", 1, tmp_path / "model")


def test_a_client_that_had_not_trained_by_then_has_no_trained_model(peaked: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(peaked, tmp_path / "run"))
    trained = client_files(newest_of(run).path)
    early = tmp_path / "early"
    fedl2g.run(Experiment(**{**SMALL, "participation": 0.4}, method="local", rounds=1), early)
    (idle, *_) = {0, 1, 2} - set(client_files(newest_of(early).path))
    with pytest.raises(RunError, match=rf"no trained model of client {idle}, .* by round 1 \(last\); run more rounds"):
        export_client(early, idle, tmp_path / "model", which="last")
    assert TrainedModels(RunDirectory.open(early)).last.load(idle).trained is False  # its initial network
    assert set(trained) == {0, 1, 2, 3}


def test_damaged_best_models_are_noticed_and_made_again(tiny: Tiny, peaked: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(peaked, tmp_path / "run"))
    best = newest_of(run).best
    assert best is not None
    client = min(client_files(best.path))
    file = client_files(best.path)[client]
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.unlink()  # a hard link: the other checkpoint keeps its own
    file.write_bytes(content)
    with pytest.raises(Damaged, match="best: the checkpoint is damaged"):
        export_client(run, client, tmp_path / "model")
    with pytest.raises(Damaged):
        newest_of(run).verify()
    (run / "result.json").unlink()
    fedl2g.resume(run)
    again = newest_of(run).best
    assert again is not None
    assert tensors_in(again.path) == tensors_in(Path(str(again.path).replace(str(run), str(peaked))))


def test_the_models_of_a_round_that_is_best_at_a_checkpoint_take_no_space_of_their_own(tmp_path: Path) -> None:
    settings = {**SMALL, "participation": 1.0, "execution": {"checkpoint_every": 1}}
    result = fedl2g.run(Experiment(**settings, method="local", rounds=2), tmp_path / "run")
    best = newest_of(tmp_path / "run").best
    assert best is not None
    holder = tmp_path / f"run/checkpoints/round-{result.best_round:06d}"
    for client, file in client_files(best.path).items():
        assert file.samefile(client_files(holder)[client])
