"""The `flower` engine: every client on its own node, reached through Flower (nodes on this machine, or a deployment).

This module does not import Flower: it is what checks whether Flower is installed.
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
    """Raise SettingError if Flower is not installed; otherwise disable its telemetry."""
    if importlib.util.find_spec("flwr") is None:
        raise SettingError(f"execution.engine: 'flower' needs the package flwr; install it with {INSTALL}")
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")


def open_flower(setup: Setup, scratch: Path | None = None) -> Engine:
    """Open the simulation with all clients of a setup; their states are on disk, below `scratch` if it is given."""
    require_flower()
    from fedl2g.engines.flower.simulation import open_simulation

    return open_simulation(setup, scratch)


engines.register("flower", open_flower, open_flower)
