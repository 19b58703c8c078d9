"""Every method, and FedL2G with each option, gives the same bits after an interruption and on workers."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from fedl2g.datasets import load_dataset, make_partition
from fedl2g.engines.base import open_engine
from fedl2g.experiment import Experiment
from fedl2g.federation import Federation, Observer, RoundRecord
from fedl2g.methods.registry import get_method
from fedl2g.setup import Setup
from method_settings import BUILT_IN, with_warmup

OPTIONS: dict[str, dict[str, Any]] = {
    "quiz": {"quiz": "rotating"},
    "weight": {"guide_weight": 0.25},
    "adaptive": {"guide_weight": "adaptive"},
    "rms": {"server_step": "rms"},
    "together": {"quiz": "rotating", "guide_weight": "adaptive", "server_step": "rms"},
}


def make_setup(method: str, given: dict[str, Any] | None = None, **settings: Any) -> Setup:
    experiment = Experiment(
        method={**with_warmup(method, 1), **(given or {})},
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


@pytest.mark.parametrize("method", BUILT_IN)
def test_an_interrupted_run_goes_on_to_the_same_bits(method: str, tmp_path: Path) -> None:
    setup = make_setup(method, rounds=4, evaluate_every=2)
    whole = make_federation(setup)
    whole.run()
    resumed = interrupted_and_resumed(setup, tmp_path)
    assert [record.round for record in resumed.history] == [0, 1, 2, 3, 4]
    assert bits(resumed, tmp_path / "resumed") == bits(whole, tmp_path / "whole")


def interrupted_and_resumed(setup: Setup, folder: Path) -> Federation:
    """A run that was stopped after round 2 and went on in new objects."""
    saved = folder / "saved"
    saved.mkdir()
    interrupt = _Interrupt(2, saved)
    make_federation(setup, interrupt).run()
    resumed = make_federation(setup)
    resumed.engine.restore(saved)
    resumed.load_state_dict(safetensors.torch.load_file(saved / "server.safetensors"), interrupt.values)
    resumed.run()
    return resumed


@pytest.mark.usefixtures("kept_workers")
@pytest.mark.parametrize("method", ["fedl2g-l", pytest.param("fedl2g-f", marks=pytest.mark.slow)])
def test_fedl2g_with_each_option_gives_the_same_bits_on_workers_and_after_an_interruption(
    method: str, tmp_path: Path
) -> None:
    found: dict[str, dict[str, Any]] = {}
    for name, options in {"published": {}, **OPTIONS}.items():
        folder = tmp_path / name
        folder.mkdir()
        setup = make_setup(method, options, rounds=4, evaluate_every=4)
        whole = make_federation(setup)
        whole.run()
        found[name] = bits(whole, folder / "whole")
        for record in whole.history[1:]:  # in the warm-up, too
            values = record.client_metrics["alignment"]
            assert sorted(values) == record.participants
            assert record.metrics["alignment"] == statistics.fmean(values.values())
        resumed = interrupted_and_resumed(setup, folder)
        assert bits(resumed, folder / "resumed") == found[name], name
        workers = make_federation(replace(setup, experiment=on_workers(setup.experiment)))
        try:
            workers.run()
            assert bits(workers, folder / "workers") == found[name], name
        finally:
            workers.engine.close()
    different = {(one["server"]["server.guide"], str(one["records"])) for one in found.values()}
    assert len(different) == len(found)  # equal engines prove nothing of an option that does nothing


def on_workers(experiment: Experiment) -> Experiment:
    return experiment.model_copy(
        update={"execution": experiment.execution.model_copy(update={"engine": "workers", "workers": 2})}
    )


def test_no_alignment_leaves_a_client_under_differential_privacy() -> None:
    privacy = {"clip": 1.0, "noise_multiplier": 1.0, "noise": "client"}
    setup = make_setup("fedl2g-l", OPTIONS["together"], rounds=2, privacy=privacy)
    federation = make_federation(setup)
    federation.run()
    assert [record.client_metrics for record in federation.history] == [{}, {}, {}]


@pytest.mark.parametrize("method", BUILT_IN)
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
