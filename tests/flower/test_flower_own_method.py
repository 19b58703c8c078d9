"""A user's own method runs on Flower through the command, without a change to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from private_network import run_python

pytest.importorskip("flwr", reason="the optional extra `flower` is not installed")

EXAMPLE = Path(__file__).parents[2] / "examples" / "fedema.py"


def test_the_example_method_gives_the_numbers_of_inline(tmp_path: Path) -> None:
    states = []
    for engine in ("inline", "flower"):
        done = run_python(
            "-m", "fedl2g", "run", "--plugin", str(EXAMPLE), "--method", "fedema", "--engine", engine, "--out", engine,
            "--models", "small_cnn,small_mobilenet", "--samples", "160", "--partition", "iid", "--clients", "2",
            "--rounds", "2", "--quiet", "--json", timeout=300, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        assert json.loads(done.stdout.splitlines()[-1])["rounds"] == 2
        checkpoint = tmp_path / engine / "checkpoints" / "round-000002"
        states.append({path.name: path.read_bytes() for path in checkpoint.glob("*.safetensors")})
    assert len(states[0]) == 3  # the server and two clients
    assert states[0] == states[1]
