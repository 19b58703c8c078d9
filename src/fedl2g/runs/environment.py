"""Describes the machine and software of a run, for environment.json."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedl2g.process import cpu_model
from fedl2g.version import __version__


def describe_environment() -> dict[str, Any]:
    """Versions, CPU and threads, and the commit when the package is run from a checkout."""
    packages: dict[str, str | None] = {}
    for name in ("torch", "torchvision", "numpy", "scikit-learn", "safetensors", "pydantic", "flwr", "opacus"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = None
    return {
        "fedl2g": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "cpus": os.cpu_count(),
        "threads_per_process": 1,
        "packages": packages,
    }


def _commit() -> str | None:
    source = Path(__file__).resolve().parent.parent
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
