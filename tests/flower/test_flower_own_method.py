"""A user's own method runs on Flower through the command, without a change to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from private_network import run_python

from fedl2g import Experiment, run
from fedl2g.references import load_plugin

pytest.importorskip("flwr", reason="the optional extra `flower` is not installed")
pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "fedema.py"


def test_the_command_runs_the_example_method_on_flower_to_the_numbers_of_inline(tmp_path: Path) -> None:
    done = run_python(
        "-m", "fedl2g", "run", "--plugin", str(EXAMPLE), "--method", "fedema", "--engine", "flower", "--out", "flower",
        "--models", "small_cnn,small_mobilenet", "--samples", "160", "--partition", "iid", "--clients", "2",
        "--rounds", "2", "--quiet", "--json", timeout=400, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    flower = json.loads(done.stdout.splitlines()[-1])
    assert (flower["status"], flower["rounds"]) == ("finished", 2)
    load_plugin(str(EXAMPLE))
    experiment = Experiment(
        method="fedema", models="small_cnn,small_mobilenet", samples=160, partition="iid", clients=2, rounds=2
    )
    assert run(experiment, tmp_path / "inline").best_accuracy == flower["best_accuracy"]
    states, losses = [], []
    for engine in ("inline", "flower"):
        checkpoint = tmp_path / engine / "checkpoints" / "round-000002"
        states.append({path.name: path.read_bytes() for path in checkpoint.glob("*.safetensors")})
        lines = (tmp_path / engine / "metrics.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["client_losses"] for line in lines])
    assert len(states[0]) == 3  # the server and two clients
    assert states[0] == states[1]
    assert [len(found) for found in losses[0]] == [0, 2, 2]
    assert losses[0] == losses[1]
