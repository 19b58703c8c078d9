"""One experiment, one set of numbers: on every engine, with any number of workers, every time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fedl2g
from fedl2g.engines.host import Host
from fedl2g.experiment import Experiment
from fedl2g.federation import Federation, Observer
from fedl2g.methods.fedl2g import FedL2GServer
from fedl2g.round.record import RoundRecord
from fedl2g.runs.directory import RunDirectory
from fedl2g.setup import Setup
from method_settings import BUILT_IN, without_warmup

pytestmark = pytest.mark.usefixtures("kept_workers")

CPU = torch.device("cpu")
Tiny = Callable[..., Experiment]
Outcome = Callable[[Path], dict[str, Any]]


@pytest.fixture(scope="module")
def inline(tiny: Tiny, outcome: Outcome, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("inline") / "run"
    fedl2g.run(tiny(), path)
    found = outcome(path)
    assert len(found["history"]) == 5
    assert found["result"]["rounds"] == 4
    assert found["files"].keys() > {"server.safetensors"}
    assert found["history"][4]["loss"] is not None
    return found


def test_a_second_execution_is_bit_identical(
    tiny: Tiny, outcome: Outcome, inline: dict[str, Any], tmp_path: Path
) -> None:
    torch.manual_seed(77)  # whatever the global generator did before
    torch.rand(5)
    fedl2g.run(tiny(), tmp_path / "run")
    assert outcome(tmp_path / "run") == inline


@pytest.mark.parametrize(
    "workers", [2, pytest.param(1, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)]
)
def test_workers_are_bit_identical_to_inline(
    workers: int, tiny: Tiny, outcome: Outcome, inline: dict[str, Any], tmp_path: Path
) -> None:
    fedl2g.run(tiny(execution__engine="workers", execution__workers=workers), tmp_path / "run")
    assert outcome(tmp_path / "run") == inline


class Threads(Observer):
    def __init__(self) -> None:
        self.seen: set[int] = set()

    def on_round(self, federation: Federation, record: RoundRecord) -> None:
        self.seen.add(torch.get_num_threads())


def test_cores_of_the_machine_do_not_matter(
    tiny: Tiny, outcome: Outcome, inline: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = Threads()
    real = FedL2GServer.update

    def update(server: FedL2GServer, *args: Any) -> None:
        threads.seen.add(torch.get_num_threads())
        real(server, *args)

    monkeypatch.setattr(FedL2GServer, "update", update)
    torch.set_num_threads(2)
    fedl2g.run(tiny(), tmp_path / "run", [threads])
    assert torch.get_num_threads() == 2
    assert threads.seen == {1}  # a sum over many numbers depends on how many threads share it
    assert outcome(tmp_path / "run") == inline


def test_checkpoints_do_not_change_the_numbers(
    tiny: Tiny, outcome: Outcome, inline: dict[str, Any], tmp_path: Path
) -> None:
    fedl2g.run(tiny(execution__checkpoint_every=100), tmp_path / "run")
    assert outcome(tmp_path / "run") == inline


def test_another_seed_gives_other_numbers(tiny: Tiny, outcome: Outcome, inline: dict[str, Any], tmp_path: Path) -> None:
    fedl2g.run(tiny(seed=1), tmp_path / "run")
    other = outcome(tmp_path / "run")
    assert other["partition"] != inline["partition"]
    assert other["files"]["server.safetensors"] != inline["files"]["server.safetensors"]
    shared = other["files"].keys() & inline["files"].keys()
    assert all(other["files"][name] != inline["files"][name] for name in shared)
    assert other["history"][4]["loss"] != inline["history"][4]["loss"]


def test_every_method_starts_from_the_same_models_and_partition(
    tiny: Tiny, setup_of: Callable[[Experiment], Setup]
) -> None:
    names = BUILT_IN
    assert {"local", "fedl2g-l", "fedl2g-f"} <= set(names)
    reference = Host(setup_of(tiny(method="local")), CPU)
    for name in names:
        host = Host(setup_of(tiny(method=without_warmup(name))), CPU)
        assert host.setup.partition == reference.setup.partition, name
        for client in range(4):
            ours, theirs = host.half(client).model.state_dict(), reference.half(client).model.state_dict()
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(ours[key], theirs[key]) for key in ours), (name, client)


def test_clients_of_one_architecture_start_differently(tiny: Tiny, setup_of: Callable[[Experiment], Setup]) -> None:
    host, other_seed = (Host(setup_of(tiny(models="small_cnn", seed=seed)), CPU) for seed in (0, 1))
    weights = [h.half(client).model.head.weight for h in (host, other_seed) for client in range(4)]
    assert not any(torch.equal(a, b) for i, a in enumerate(weights) for b in weights[:i])


def test_the_order_of_the_clients_does_not_matter(tiny: Tiny, setup_of: Callable[[Experiment], Setup]) -> None:
    setup = setup_of(tiny(method__warmup_rounds=0))
    forward, backward = Host(setup, CPU), Host(setup, CPU)
    payload = {"ids": torch.arange(10), "rows": torch.randn(10, 512)}
    first = {client: forward.train(client, 1, payload) for client in range(4)}
    torch.rand(3)
    second = {client: backward.train(client, 1, payload) for client in reversed(range(4))}
    for client in range(4):
        assert torch.equal(first[client].payload["rows"], second[client].payload["rows"])
        assert first[client].report.loss == second[client].report.loss


def test_what_a_run_directory_holds(tiny: Tiny, tmp_path: Path) -> None:
    experiment = tiny(models="small_cnn", rounds=2)
    result = fedl2g.run(experiment, tmp_path / "run")
    directory = RunDirectory.open(tmp_path / "run")
    assert directory.experiment() == experiment
    assert directory.partition().clients == 4
    environment = directory.environment()
    assert environment["packages"]["torch"] == torch.__version__.split("+")[0] or environment["packages"]["torch"]
    assert environment["threads_per_process"] == 1
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [0, 1, 2]
    assert fedl2g.load(tmp_path / "run") == result
    assert directory.about()["fingerprint"] == experiment.fingerprint
    distances = [record.server["guide_distance"] for record in directory.history()[1:]]
    assert 0 < distances[0] < distances[1]
