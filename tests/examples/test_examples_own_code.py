"""The doors for a user's own method, model and data, through the command as a user types it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedl2g import Experiment, resume, run
from fedl2g.datasets import load_dataset, make_partition
from fedl2g.engines.workers import WorkersEngine
from fedl2g.errors import SettingError
from fedl2g.learning.client import Task
from fedl2g.methods.base import Combined
from fedl2g.methods.registry import get_method
from fedl2g.payload import class_vectors
from fedl2g.references import load_plugin
from fedl2g.schema import image_schema
from fedl2g.setup import Setup

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "fedema.py"
TINY = ("--samples", "160", "--partition", "iid", "--clients", "2", "--rounds", "2", "--quiet", "--json")


def fedl2g(folder: Path, *arguments: str) -> dict[str, object]:
    """What a run in another process says at its end."""
    done = subprocess.run(
        [sys.executable, "-m", "fedl2g", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},  # not the folder: the command adds it
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_example_method_is_one_short_file() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 60


@pytest.mark.slow
@pytest.mark.usefixtures("kept_workers")
def test_the_example_method_gives_the_same_numbers_on_every_engine(
    tmp_path: Path, outcome: Callable[[Path], dict[str, Any]]
) -> None:
    """Inline by the command, on workers from Python; tests/flower has it on Flower."""
    arguments = ("run", "--plugin", str(EXAMPLE), "--method", "fedema", "--models", "small_cnn,small_mobilenet", *TINY)
    inline = fedl2g(tmp_path, *arguments, "--out", "inline")
    load_plugin(str(EXAMPLE))
    experiment = Experiment(
        method="fedema", models="small_cnn,small_mobilenet", samples=160, partition="iid", clients=2, rounds=2,
        execution={"engine": "workers"},
    )  # fmt: skip
    assert run(experiment, tmp_path / "workers").best_accuracy == inline["best_accuracy"]
    expected = outcome(tmp_path / "inline")
    assert len(expected["history"]) == len(expected["files"]) == 3
    assert outcome(tmp_path / "workers") == expected


def test_the_example_method_keeps_its_memory(tmp_path: Path) -> None:
    load_plugin(str(EXAMPLE))
    method = get_method("fedema")
    task = Task(classes=3, inputs=image_schema(3, 32, 32), seed=0, rounds=1, auxiliary="small_cnn", feature_dim=2)
    server = method.server(method.options(memory=0.75), task)
    first = class_vectors(torch.tensor([0, 2]), torch.tensor([[4.0, 8.0], [1.0, 1.0]]))
    second = class_vectors(torch.tensor([0]), torch.tensor([[0.0, 4.0]]))
    server.update(1, Combined(first))
    server.update(2, Combined(second))
    assert server.broadcast(3)["ids"].tolist() == [0, 2]
    assert server.broadcast(3)["rows"].tolist() == [[3.0, 7.0], [1.0, 1.0]]


@pytest.mark.slow
@pytest.mark.usefixtures("own_workers")
def test_own_models_and_data_with_one_channel_and_odd_shapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Callable[[Path], dict[str, Any]]
) -> None:
    (tmp_path / "my_models.py").write_text(
        "from torch import nn\n\n\n"
        "def network(classes, image_shape):\n"
        "    return nn.Sequential(\n"
        "        nn.Conv2d(image_shape[0], 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),\n"
        "        nn.Linear(128, classes))\n"
    )
    rng = np.random.default_rng(0)
    labels = np.arange(160) % 3
    images = (rng.random((160, 28, 36)) * 80 + 70 * labels[:, None, None]).astype(np.uint8)
    np.savez(tmp_path / "my.npz", images=images, labels=labels)
    result = fedl2g(
        tmp_path, "run", "--dataset", "my.npz", "--models", "my_models:network,small_resnet",
        "--method", "fedl2g-f", "--set", "method.warmup_rounds=0", "--out", "inline", *TINY,
    )  # fmt: skip
    assert result["rounds"] == 2
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    experiment = Experiment(
        method={"name": "fedl2g-f", "warmup_rounds": 0}, dataset="my.npz", models="my_models:network,small_resnet",
        samples=160, partition="iid", clients=2, rounds=2, execution={"engine": "workers", "workers": 1},
    )  # fmt: skip
    run(experiment, tmp_path / "workers")
    assert outcome(tmp_path / "workers") == outcome(tmp_path / "inline")


@pytest.mark.usefixtures("own_workers")
def test_workers_do_not_call_the_users_data_function_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "counted_data.py").write_text(
        "import numpy as np\n\n\n"
        "def load():\n"
        f"    with open({str(tmp_path / 'calls')!r}, 'a') as file:\n"
        "        file.write('called\\n')\n"
        "    return np.random.RandomState(0).randint(0, 256, (60, 16, 16), dtype=np.uint8), np.arange(60) % 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    execution = {"engine": "workers", "workers": 1}
    experiment = Experiment(
        method="local", dataset="counted_data:load", samples=50, partition="iid", clients=2, rounds=1,
        models="small_cnn", execution=execution,
    )  # fmt: skip

    def calls() -> int:
        return len((tmp_path / "calls").read_text().splitlines())

    run(experiment, tmp_path / "run")
    assert calls() == 1
    # A worker that is started again later may find the folder gone: then it makes the data anew.
    dataset = load_dataset(experiment.dataset, samples=50)
    partition = make_partition("iid", dataset.labels, None, clients=2, classes=3, seed=0)
    assert dataset.folder is not None
    shutil.rmtree(dataset.folder)
    before = calls()
    WorkersEngine(Setup(experiment, dataset, partition)).close()
    assert calls() > before


def test_code_named_in_a_run_directory_is_imported_only_when_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "others_models.py").write_text(
        "from torch import nn\n\n\n"
        "def network(classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(3072, classes))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    experiment = Experiment(
        method="local", samples=100, partition="iid", clients=2, rounds=1, models="others_models:network"
    )
    result = run(experiment, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    sys.modules.pop("others_models")
    with pytest.raises(SettingError, match="--trust"):
        resume(tmp_path / "run")
    assert "others_models" not in sys.modules
    assert resume(tmp_path / "run", trust=True).best_accuracy == result.best_accuracy
