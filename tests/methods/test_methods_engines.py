"""Every method gives the same bits after an interruption, and however often it is evaluated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from fedl2g.data import load_dataset, make_partition
from fedl2g.engines.base import open_engine
from fedl2g.experiment import Experiment
from fedl2g.federation import Federation, Observer, RoundRecord
from fedl2g.methods.registry import get_method, method_names
from fedl2g.setup import Setup

METHODS = method_names()[:10]


def make_setup(method: str, **settings: Any) -> Setup:
    options: dict[str, Any] = {"name": method}
    if method.startswith("fedl2g"):
        options["warmup_rounds"] = 1
    experiment = Experiment(
        method=options,
        dataset="digits",
        samples=120,
        clients=4,
        participation=0.5,
        models="small_cnn,small_resnet",
        **settings,
    )
    dataset = load_dataset("digits", samples=120)
    partition = make_partition("dirichlet:0.5", dataset.labels, None, clients=4, classes=dataset.classes, seed=0)
    return Setup(experiment, dataset, partition)


def make_federation(setup: Setup, *observers: Observer) -> Federation:
    server = get_method(setup.experiment.method.name).server(setup.experiment.method, setup.task)
    return Federation(setup.experiment, server, open_engine(setup), observers)


def bits(federation: Federation, directory: Path) -> dict[str, Any]:
    """All that a run has come to, without the seconds it took."""
    directory.mkdir()
    federation.engine.save(directory)
    tensors, values = federation.state_dict()
    records = [{k: v for k, v in record.items() if "seconds" not in k} for record in values["history"]]
    files = sorted(directory.iterdir())
    assert files or federation.experiment.method.name.startswith("fedl2g")
    return {
        "records": records,
        "server": {name: tensor.numpy().tobytes() for name, tensor in tensors.items()},
        "clients": {file.name: file.read_bytes() for file in files},
    }


class _Interrupt(Observer):
    """Saves everything after a round, as a checkpoint does, and ends the run there."""

    def __init__(self, round: int, directory: Path) -> None:
        self.round, self.directory = round, directory
        self.values: dict[str, Any] = {}

    def on_round(self, federation: Federation, record: RoundRecord) -> None:
        if record.round == self.round:
            federation.engine.save(self.directory)
            tensors, self.values = federation.state_dict()
            safetensors.torch.save_file(
                {n: t.contiguous() for n, t in tensors.items()}, self.directory / "server.safetensors"
            )
            federation.stop("interrupted")


@pytest.mark.parametrize("method", METHODS)
def test_an_interrupted_run_goes_on_to_the_same_bits(method: str, tmp_path: Path) -> None:
    setup = make_setup(method, rounds=4, evaluate_every=2)
    whole = make_federation(setup)
    whole.run()

    saved = tmp_path / "saved"
    saved.mkdir()
    interrupt = _Interrupt(2, saved)
    make_federation(setup, interrupt).run()
    resumed = make_federation(setup)
    resumed.engine.restore(saved)
    resumed.load_state_dict(safetensors.torch.load_file(saved / "server.safetensors"), interrupt.values)
    resumed.run()
    assert [record.round for record in resumed.history] == [0, 1, 2, 3, 4]
    assert bits(resumed, tmp_path / "resumed") == bits(whole, tmp_path / "whole")


@pytest.mark.parametrize("method", METHODS)
def test_evaluation_leaves_training_as_it_is(method: str, tmp_path: Path) -> None:
    """Evaluating in every round or only at the end must not change what is learnt."""
    found = []
    for every in (1, 3):
        federation = make_federation(make_setup(method, rounds=3, evaluate_every=every))
        federation.run()
        found.append(bits(federation, tmp_path / str(every)))
    assert found[0]["clients"] == found[1]["clients"]
    assert found[0]["server"] == found[1]["server"]
    last, other = (f["records"][-1] for f in found)
    assert last == other


def test_private_state_is_saved_and_differs_between_clients() -> None:
    for method in ("fedkd", "fedmrl"):
        host = make_federation(make_setup(method, rounds=1)).engine.host  # type: ignore[attr-defined]
        first, second = ({n: t for n, t in host.state(c).items() if not n.startswith("model.")} for c in (0, 1))
        assert first
        assert all(not torch.equal(tensor, second[name]) for name, tensor in first.items())
