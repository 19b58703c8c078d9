"""Start-up without torch, a profile that adds up, and code paths of accelerators on a device that cannot be read."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import fedl2g
from fedl2g.engines.host import Host
from fedl2g.engines.inline import InlineEngine
from fedl2g.experiment import Experiment
from fedl2g.learning.devices import resolve_device, synchronizer
from fedl2g.learning.optimizer import ClippedSGD
from fedl2g.learning.preparation import ImagePreparation
from fedl2g.learning.profiling import PARTS, Stopwatch, split_round, total_profile
from fedl2g.learning.training import SampleView, train
from fedl2g.methods.registry import get_method
from fedl2g.round.policies import make_policies
from fedl2g.runs.directory import RunDirectory

PROGRAM = """
import sys
sys.argv = ["fedl2g", *{arguments!r}]
from fedl2g.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
heavy = {{"torch", "torchvision", "sklearn", "matplotlib", "pandas", "flwr"}} & sys.modules.keys()
if sys.argv[-1] != "--help" or len(sys.argv) == 2:  # the options of `run` are made from the fields of a pydantic model
    heavy |= {{"pydantic"}} & sys.modules.keys()
assert not heavy, heavy
"""


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["list", "RUNS"], ["--version"]])
def test_commands_that_need_no_torch_do_not_load_it(arguments: list[str], tiny: Any, tmp_path: Path) -> None:
    if "RUNS" in arguments:
        fedl2g.run(tiny(method="local", rounds=1), tmp_path / "run")
    arguments = [str(tmp_path) if argument == "RUNS" else argument for argument in arguments]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", PROGRAM.format(arguments=arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert ("list" in arguments) == ("finished " in done.stdout)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime < 2  # generous: CPU seconds, on a machine that may be slow and busy


def test_a_profile_is_in_the_records_and_adds_up(tiny: Any, tmp_path: Path) -> None:
    fedl2g.run(tiny(rounds=2, execution={"profile": True}), tmp_path / "run")
    rounds = [record.profile_seconds for record in RunDirectory(tmp_path / "run").history()]
    assert rounds[0] == {}
    assert all(set(parts) == set(PARTS) for parts in rounds[1:])
    total = total_profile(rounds)
    for name in ("data", "forward and backward", "optimizer", "guiding step", "evaluation"):
        assert total[name] > 0
    assert all(seconds >= 0 for seconds in total.values())
    fedl2g.run(tiny(rounds=1), tmp_path / "off")
    assert all(not record.profile_seconds for record in RunDirectory(tmp_path / "off").history())


def test_a_profile_changes_no_number(tiny: Any) -> None:
    assert tiny(execution={"profile": True}).fingerprint == tiny().fingerprint


def test_the_parts_of_a_round() -> None:
    spent = [(2.0, {"data": 0.5, "other work of clients": 0.25}), (1.0, {"data": 0.25})]
    parts = split_round(spent, wall=3.0, server=0.125, evaluation=0.5, lanes=2)
    assert parts["data"] == 0.75
    assert parts["other work of clients"] == 2.5
    assert parts["evaluation"] == 1.0
    assert parts["aggregation"] == 0.125
    assert parts["waiting"] == 6 - 3.25 - 1 - 0.125
    assert sum(parts.values()) == 6


def test_a_stopwatch_that_is_off_measures_nothing() -> None:
    watch = Stopwatch()
    watch.start()
    watch.lap("data")
    assert watch.take() == {}
    finished: list[bool] = []
    watch.on(lambda: finished.append(True))
    watch.start()
    watch.lap("data")
    assert finished == [True]
    assert list(watch.take()) == ["data"]
    watch.off()


def test_no_step_waits_for_the_device() -> None:
    """On the meta device nothing can be read back: a host sync inside a step would fail at once."""
    meta = torch.device("meta")
    images, labels = torch.zeros(20, 1, 8, 8, dtype=torch.uint8), torch.zeros(20, dtype=torch.int64)
    view = SampleView(images, labels, torch.arange(20), device=meta, prepare=ImagePreparation(torch.float32))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).to(meta)
    steps = []

    def loss(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        assert x.is_meta
        steps.append(len(y))
        own = cross_entropy(model(x), y)
        return own, own

    with pytest.raises(NotImplementedError, match="meta"):  # the mean loss, after the last step
        train(view, loss, [ClippedSGD(model.parameters(), 0.1, clip=1.0)], [torch.arange(20)], 5)
    assert steps == [5, 5, 5, 5]


@pytest.mark.parametrize("method", ["local", "feddistill", "fedproto", "fedl2g-l", "fedl2g-f"])
def test_no_step_of_a_method_waits_for_the_device(
    method: str, tiny: Any, setup_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"name": method, **({"warmup_rounds": 0} if method.startswith("fedl2g") else {})}
    setup = setup_of(tiny(method=options, clients=2, local_epochs=2))
    server = get_method(method).server(setup.experiment.method, setup.task)
    here, there = (Host(setup, torch.device(device)) for device in ("cpu", "meta"))
    replies = [here.train(client, 1, server.broadcast(1)) for client in range(2)]
    policies = make_policies(setup.experiment, server, InlineEngine(setup))
    combined = policies.aggregator.combine(1, replies, server.broadcast(1))
    if combined is not None:  # from now on there are prototypes and mean logits to learn from
        server.update(1, combined)
    steps, step = [], ClippedSGD.step
    monkeypatch.setattr(ClippedSGD, "step", lambda optimizer: (steps.append(optimizer), step(optimizer)))
    for client in range(2):
        with pytest.raises(NotImplementedError, match="meta"):  # the mean loss, after the last step
            there.train(client, 2, server.broadcast(2))
    assert len(steps) == sum(reply.report.steps for reply in replies) > 4


def test_batches_for_a_gpu_come_from_pinned_memory_and_block_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, calls, to = torch.device("cuda:1"), [], torch.Tensor.to

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        calls.append(("pinned", tensor.dtype))
        return tensor

    def copy(tensor: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        if args[:1] != (gpu,):
            return to(tensor, *args, **options)
        calls.append(("copied", tensor.dtype))
        assert options == {"non_blocking": True}
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", copy)
    images, labels = torch.arange(32, dtype=torch.uint8).reshape(8, 1, 2, 2), torch.arange(8)
    x, y = SampleView(images, labels, torch.tensor([4, 2]), device=gpu, prepare=ImagePreparation(torch.float32)).batch(
        torch.tensor([1, 0])
    )
    assert calls == [(what, dtype) for what in ("pinned", "copied") for dtype in (torch.uint8, torch.int64)]
    assert torch.equal(x, images[[2, 4]] / 127.5 - 1)  # bytes travel, and become numbers there
    assert y.tolist() == [2, 4]


@pytest.mark.parametrize(("device", "given"), [("cuda:1", [torch.device("cuda:1")]), ("mps", [])])
def test_a_profile_waits_for_the_device_of_its_host(
    device: str, given: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[Any] = []

    class Module:
        @staticmethod
        def synchronize(*args: Any) -> None:
            waited.append([*args])

    monkeypatch.setattr(torch, "get_device_module", lambda device: Module)
    wait = synchronizer(torch.device(device))
    assert wait is not None
    wait()
    assert waited == [given]
    assert synchronizer(torch.device("cpu")) is None


@pytest.mark.parametrize(
    ("name", "count", "found"), [("auto", 2, [0, 1, 0]), ("cuda", 3, [0, 1, 2]), ("cuda:1", 2, [1] * 3)]
)
def test_workers_share_all_gpus(name: str, count: int, found: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert [resolve_device(name, worker) for worker in range(3)] == [torch.device("cuda", index) for index in found]


@pytest.mark.parametrize("device", ["auto", "cpu", "mps", "cuda", "cuda:1", "cuda:0,cuda:1"])
def test_valid_devices(device: str) -> None:
    assert Experiment(device=device).device == device
