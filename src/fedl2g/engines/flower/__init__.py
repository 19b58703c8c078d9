"""The `flower` engine: every client on a node of its own, reached through Flower (Ray or a real deployment)."""

from __future__ import annotations

import importlib.util
import os

from fedl2g.errors import SettingError

INSTALL = 'pip install "fedl2g[flower]"'


def require_flower() -> None:
    """Refuse with what to install where Flower is missing; else keep it from reporting to its makers."""
    if importlib.util.find_spec("flwr") is None:
        raise SettingError(f"execution.engine: 'flower' needs the package flwr; install it with {INSTALL}")
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
