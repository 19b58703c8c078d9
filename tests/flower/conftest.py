"""Engines over a grid in this process. Flower is imported by the fixtures: it may not be installed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fake_engine import Open
    from fake_grid import FakeClock, FakeSimulation

    from fedl2g.engines.flower.simulation import SimulationEngine
    from fedl2g.engines.flower.terms import Terms
    from fedl2g.setup import Setup


@pytest.fixture
def clock() -> FakeClock:
    from fake_grid import FakeClock

    return FakeClock()


@pytest.fixture
def opened(tmp_path: Path, clock: FakeClock) -> Open:
    """An engine that treats refusing sites and unusable replies as a deployment does."""
    from fake_grid import QUICK

    return _opener(tmp_path, clock, QUICK)


@pytest.fixture
def simulated(tmp_path: Path, clock: FakeClock) -> Open:
    """An engine as a simulation is."""
    from fedl2g.engines.flower.simulation import SIMULATION

    return _opener(tmp_path, clock, SIMULATION)


def _opener(root: Path, clock: FakeClock, terms: Terms) -> Open:
    from fake_grid import FakeSimulation

    from fedl2g.engines.flower.simulation import SimulationEngine

    def open_engine(setup: Setup) -> tuple[SimulationEngine, FakeSimulation]:
        fake = FakeSimulation(root / "stores", setup.experiment.clients, clock)
        return SimulationEngine(fake, setup, terms=terms, clock=clock), fake

    return open_engine
