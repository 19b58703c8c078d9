"""The `flower` engine in simulation gives the numbers of `inline`, bit for bit, for every method."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from private_network import run_python, run_script

from fedl2g.methods.registry import method_names
from fedl2g.round.absence import BUSY, DROPPED, LOST

pytest.importorskip("flwr", reason="the optional extra `flower` is not installed")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What differs between the engines, of all runs made in one process with one start of Ray."""
    out = tmp_path_factory.mktemp("flower")
    # A machine on which others compute needs long to start Ray's processes.
    done = run_script(Path(__file__).parent / "simulate_all_methods.py", str(out), timeout=900, cwd=out)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-4000:]
    result: dict[str, list[str]] = json.loads(lines[-1].removeprefix("RESULT "))
    return result


@pytest.mark.parametrize("method", method_names())
def test_simulation_equals_inline_bit_for_bit(method: str, found: dict[str, list[str]]) -> None:
    assert found[method] == []


@pytest.mark.parametrize("world", ["unstable", "private, client", "private, server"])
def test_unstable_hostile_and_private_runs_equal_inline_bit_for_bit(world: str, found: dict[str, list[str]]) -> None:
    assert found[world] == []


def test_the_unstable_run_was_unstable(found: dict[str, list[str]]) -> None:
    assert set(found["seen"]) >= {"hostile", "late", DROPPED, LOST, BUSY}


@pytest.mark.parametrize("order", ["flower-then-inline", "inline-then-flower"])
def test_checkpoints_are_interchangeable_between_engines(order: str, found: dict[str, list[str]]) -> None:
    assert found[order] == []


def test_a_killed_actor_changes_nothing(found: dict[str, list[str]]) -> None:
    assert found["killed actor"] == []


def test_the_command_runs_on_flower_to_the_numbers_of_inline(tmp_path: Path) -> None:
    results = []
    for engine in ("flower", "inline"):
        done = run_python(
            "-m", "fedl2g", "run", "--dataset", "digits", "--samples", "120", "--partition", "iid", "--clients", "2",
            "--models", "small_cnn", "--method", "fedproto", "--rounds", "1", "--quiet", "--json", "--engine", engine,
            "--out", engine, timeout=400, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        results.append(json.loads(done.stdout.splitlines()[-1]))
    assert results[0]["best_accuracy"] == results[1]["best_accuracy"]
    assert results[0]["status"] == "finished"
    lines = [(tmp_path / engine / "metrics.jsonl").read_text().splitlines() for engine in ("flower", "inline")]
    losses = [[json.loads(line)["client_losses"] for line in found] for found in lines]
    assert losses[0] == losses[1]
    assert len(losses[0][1]) == 2
