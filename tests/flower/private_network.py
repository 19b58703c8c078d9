"""Runs a test's processes where nobody else can reach them: a SuperLink's processes listen."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path


def can_be_alone() -> bool:
    """Whether this machine lets us make a network namespace."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    return subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode == 0


def alone(command: list[str]) -> list[str]:
    """The command in a network namespace of its own with only a loopback; the command itself where there is none."""
    if not can_be_alone():
        return command
    return ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "alone", *command]


def run_script(script: Path, *arguments: str, timeout: float, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a Python script alone, with this Python."""
    return run_python(str(script), *arguments, timeout=timeout, cwd=cwd)


def run_python(*arguments: str, timeout: float, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run this Python alone with these arguments; it can import the modules that tests share."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shared = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PATH": path,
        "PYTHONPATH": os.pathsep.join(shared),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_HOME": str(cwd / "flwr"),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    return subprocess.run(
        alone([sys.executable, *arguments]),
        capture_output=True, text=True, timeout=timeout, cwd=cwd, env=environment,
    )  # fmt: skip
