"""A disk of a random size that fills up: one sentence, and with room again the numbers of a run that always had it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.faults
_MOUNT = 'mount -t tmpfs -o size=8k none "$1" && exec "$2" "$3" "$1" 20'


def _can_mount(disk: Path) -> bool:
    command = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=8k none "$1"', "mount", str(disk)]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


def test_a_disk_that_fills_up_costs_nothing(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    if not _can_mount(tmp_path):
        pytest.skip("no namespace with a small disk here; tests/runs/test_runs_survival.py limits the size of files")
    script = Path(__file__).parent / "full_disk.py"
    tests = str(script.parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([tests, *filter(None, sys.path)])}
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", _MOUNT, "mount", str(tmp_path), sys.executable, str(script)],
        capture_output=True, text=True, timeout=600, env=environment,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-4000:]
    found = json.loads(lines[-1].removeprefix("RESULT "))
    counts = {"runs on a small disk": 12, "that filled it": found["full"], "different": found["different"]}
    record_property("figures", {"full disk": counts})
    assert found["wrong"] == []
    assert found["different"] == 0
    assert found["full"] >= 3
