"""The `flower` engine: every client on a node of its own, reached through Flower (Ray or a real deployment).

Nothing here needs Flower: this module is imported to find out whether it is installed.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

from fedl2g.errors import SettingError
from fedl2g.registry import engines

if TYPE_CHECKING:
    from fedl2g.engines.base import Engine
    from fedl2g.setup import Setup

INSTALL = 'pip install "fedl2g[flower]"'


def require_flower() -> None:
    """Refuse with what to install where Flower is missing; else keep it from reporting to its makers."""
    if importlib.util.find_spec("flwr") is None:
        raise SettingError(f"execution.engine: 'flower' needs the package flwr; install it with {INSTALL}")
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")


def open_flower(setup: Setup, scratch: Path | None = None) -> Engine:
    """Open Flower's simulation with all clients of a setup; their states are on disk in any case."""
    require_flower()
    from fedl2g.engines.flower.simulation import open_simulation

    return open_simulation(setup)


engines.register("flower", open_flower, open_flower)
