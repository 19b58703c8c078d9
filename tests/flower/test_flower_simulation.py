"""The `flower` engine in simulation gives the numbers of `inline`, bit for bit, for every method."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from private_network import run_script

from compared import PAIRS
from fedl2g.methods.registry import method_names
from fedl2g.round.absence import BUSY, DROPPED, LOST

pytest.importorskip("flwr", reason="the optional extra `flower` is not installed")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What differs between the engines, of all runs made in one process, whose processes for the nodes are shared."""
    out = tmp_path_factory.mktemp("flower")
    done = run_script(Path(__file__).parent / "simulate_all_methods.py", str(out), timeout=1800, cwd=out)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-4000:]
    result: dict[str, list[str]] = json.loads(lines[-1].removeprefix("RESULT "))
    return result


@pytest.mark.parametrize("method", method_names())
def test_simulation_equals_inline_bit_for_bit(method: str, found: dict[str, list[str]]) -> None:
    assert found[method] == []


@pytest.mark.parametrize(("method", "setting"), PAIRS)
def test_each_setting_of_each_method_equals_inline_bit_for_bit(
    method: str, setting: str, found: dict[str, list[str]]
) -> None:
    assert found[f"{method}, {setting}"] == []


@pytest.mark.parametrize("world", ["unstable", "options of FedL2G", "private, client", "private, server"])
def test_unstable_guided_and_private_runs_equal_inline_bit_for_bit(world: str, found: dict[str, list[str]]) -> None:
    assert found[world] == []


def test_the_unstable_run_was_unstable(found: dict[str, list[str]]) -> None:
    assert set(found["seen"]) >= {"hostile", "late", DROPPED, LOST, BUSY}


@pytest.mark.parametrize("order", ["flower-then-inline", "inline-then-flower"])
def test_checkpoints_are_interchangeable_between_engines(order: str, found: dict[str, list[str]]) -> None:
    assert found[order] == []


def test_a_killed_process_changes_nothing(found: dict[str, list[str]]) -> None:
    assert found["killed process"] == []
