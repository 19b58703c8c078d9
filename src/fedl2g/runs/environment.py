"""The machine and software a run was made with, for its records."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import fedl2g


def describe_environment() -> dict[str, Any]:
    """Versions, CPU and threads, and the commit when the package is run from a checkout."""
    packages: dict[str, str | None] = {}
    for name in ("torch", "torchvision", "numpy", "scikit-learn", "safetensors", "pydantic", "flwr", "opacus"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = None
    return {
        "fedl2g": fedl2g.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "threads_per_process": 1,
        "packages": packages,
    }


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def _commit() -> str | None:
    source = Path(fedl2g.__file__).resolve().parent
    if not (source.parent.parent / ".git").exists():
        return None
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=source,
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
