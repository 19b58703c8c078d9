"""The `flower` engine: every client on its own node, reached through Flower (nodes on this machine, or a deployment).

This module does not import Flower: it is what checks whether Flower is installed.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import os
import re
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from fedl2g.errors import SettingError
from fedl2g.registry import engines

if TYPE_CHECKING:
    from fedl2g.engines.base import Engine
    from fedl2g.setup import Setup

_log = logging.getLogger(__name__)
INSTALL = 'pip install "fedl2g[flower]"'


OLDEST, NEWEST = (1, 41), (1, 42)
"""The releases of Flower with which this version was tested, and all between them."""


def require_flower() -> None:
    """Raise SettingError if Flower is missing or a release that cannot work; otherwise disable its telemetry."""
    if importlib.util.find_spec("flwr") is None:
        raise SettingError(f"execution.engine: 'flower' needs the package flwr; install it with {INSTALL}")
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    _check_release(version("flwr"))


@functools.cache
def _check_release(installed: str) -> None:
    """The release itself, and the names that Flower's reference does not list."""
    known = re.match(r"(\d+)\.(\d+)", installed)
    release = (int(known[1]), int(known[2])) if known else OLDEST
    tested = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
    advice = f'install one of them with pip install "flwr>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}"'
    if release < OLDEST:
        raise SettingError(f"flwr: release {installed} is too old; expected {tested}; {advice}")
    try:
        importlib.import_module("fedl2g.engines.flower.internals")
    except (ImportError, AttributeError) as error:
        raise SettingError(
            f"flwr: release {installed} lacks what fedl2g needs ({error}); expected {tested}; {advice}"
        ) from error
    if release > NEWEST:
        _log.warning("flwr: release %s was not tested with this fedl2g; tested are %s", installed, tested)


def open_flower(setup: Setup, scratch: Path | None = None) -> Engine:
    """Open the simulation with all clients of a setup; their states are on disk, below `scratch` if it is given."""
    require_flower()
    from fedl2g.engines.flower.simulation import open_simulation

    return open_simulation(setup, scratch)


engines.register("flower", open_flower, open_flower)
