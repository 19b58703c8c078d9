"""The tutorial of three hospitals, every command of it, with real servers, TLS and node authentication."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from private_network import run_script

pytest.importorskip("flwr", reason="the optional extra `flower` is not installed")


@pytest.mark.deployment
def test_the_tutorial_runs_and_equals_the_inline_run(tmp_path: Path) -> None:
    done = run_script(Path(__file__).parent / "run_tutorial.py", str(tmp_path), timeout=560, cwd=tmp_path)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-4000:] + done.stdout[-1000:]
    found = json.loads(lines[-1].removeprefix("RESULT "))
    assert found["differences"] == []
    assert found["models at the coordinator"] == []
    assert found["predictions"] == {"north": [5, 4], "south": [5, 4], "east": [5, 4]}
