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
from fedl2g.experiment import Experiment
from fedl2g.profiling import PARTS, Stopwatch, split_round, total_profile
from fedl2g.runs.directory import RunDirectory
from fedl2g.training import ImageView, Update, train

PROGRAM = """
import sys
sys.argv = ["fedl2g", *{arguments!r}]
from fedl2g.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
heavy = sorted({{"torch", "torchvision", "sklearn", "matplotlib", "pandas", "pydantic", "flwr"}} & sys.modules.keys())
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
    assert ("list" in arguments) == ("finished" in done.stdout)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime < 2  # generous: CPU seconds, on a machine that may be slow and busy


def test_a_profile_is_in_the_records_and_adds_up(tiny: Any, tmp_path: Path) -> None:
    fedl2g.run(tiny(rounds=2, execution={"profile": True}), tmp_path / "run")
    rounds = [record.profile_seconds for record in RunDirectory(tmp_path / "run").history()]
    assert rounds[0] == {}
    assert all(set(parts) == set(PARTS) for parts in rounds[1:])
    total = total_profile(rounds)
    for name in ("data", "forward and backward", "optimiser", "guiding step", "evaluation"):
        assert total[name] > 0
    assert all(seconds >= 0 for seconds in total.values())
    fedl2g.run(tiny(rounds=1), tmp_path / "off")
    assert all(not record.profile_seconds for record in RunDirectory(tmp_path / "off").history())


def test_a_profile_changes_no_number(tiny: Any) -> None:
    assert tiny(execution={"profile": True}).fingerprint == tiny().fingerprint


def test_the_parts_of_a_round() -> None:
    parts = split_round(
        [(2.0, {"data": 0.5}), (1.0, {"data": 0.25})], training=2.0, server=0.1, evaluation=0.5, lanes=2
    )
    assert parts["data"] == 0.75
    assert parts["other work of clients"] == 2.25
    assert parts["waiting"] == 1.0
    assert parts["evaluation"] == 1.0


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
    view = ImageView(images, labels, torch.arange(20), device=meta, dtype=torch.float32)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).to(meta)
    steps = []

    def loss(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        assert x.is_meta
        steps.append(len(y))
        own = cross_entropy(model(x), y)
        return own, own

    with pytest.raises(NotImplementedError, match="meta"):  # the mean loss, after the last step
        train(view, loss, [Update(model.parameters(), 0.1, clip=1.0)], [torch.arange(20)], 5)
    assert steps == [5, 5, 5, 5]


@pytest.mark.parametrize("device", ["auto", "cpu", "mps", "cuda", "cuda:1", "cuda:0,cuda:1"])
def test_devices_that_may_be_named(device: str) -> None:
    assert Experiment(device=device).device == device
