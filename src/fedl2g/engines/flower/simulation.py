"""The `flower` engine on one machine: a deployment's messages and ClientApp, on nodes of a local grid.

There is no SuperLink and no network. The processes that serve the nodes are stateless: each client's state is in a
store in a temporary folder, as it would be on its node's disk in a deployment.
"""

from __future__ import annotations

import secrets
import shutil
import time
from pathlib import Path
from typing import Protocol

from fedl2g.engines.flower.actor import write_setup
from fedl2g.engines.flower.engine import GridEngine
from fedl2g.engines.flower.local import LocalGrid
from fedl2g.engines.flower.nodes import MessageGrid
from fedl2g.engines.flower.store import NodeStore, TrainedRound
from fedl2g.engines.flower.terms import Clock, Terms
from fedl2g.engines.states import client_file, client_files, read_state, write_state
from fedl2g.setup import Setup
from fedl2g.temporary import remove_folder, temporary_folder

# All clients are on this machine: a refusal is an error of the run itself, and a retry would give the same unusable
# reply. A process that died is replaced; twelve deaths in a row (two minutes) are not an accident.
SIMULATION = Terms(poll_seconds=0.001, first_pause=0.2, attempts=12, refusal_ends_run=True, retries=False)


def open_simulation(setup: Setup, scratch: Path | None = None) -> SimulationEngine:
    """Open an engine with all the experiment's clients; their stores are below `scratch` or in a temporary folder."""
    simulation = Simulation(setup.experiment.clients, setup.experiment.execution.workers, scratch)
    try:
        return SimulationEngine(simulation, setup)
    except BaseException:
        simulation.close()
        raise


class RunningSimulation(Protocol):
    """The part of a simulation that an engine uses."""

    root: Path
    """Holds one folder per run with its clients' stores."""
    workers: int
    """How many processes serve the nodes."""

    @property
    def grid(self) -> MessageGrid: ...

    def close(self) -> None:
        """Stop the simulation and delete its clients."""


class Simulation:
    """Nodes on this machine, and the folder of their stores."""

    def __init__(self, nodes: int, workers: int, scratch: Path | None = None) -> None:
        self.workers = min(workers, nodes)
        if scratch is not None:
            scratch.mkdir(parents=True, exist_ok=True)
        self.root = temporary_folder("flower", scratch).resolve()
        try:
            self.grid = LocalGrid(self.root, nodes, self.workers)
        except BaseException:
            remove_folder(self.root)
            raise

    def close(self) -> None:
        """Give its processes back and delete its clients."""
        self.grid.close()
        remove_folder(self.root)


class SimulationEngine(GridEngine):
    """A run's clients on the nodes of a simulation, which is closed with the engine."""

    def __init__(
        self,
        simulation: RunningSimulation,
        setup: Setup,
        *,
        terms: Terms = SIMULATION,
        clock: Clock = time,
    ) -> None:
        run = secrets.token_hex(8)
        super().__init__(simulation.grid, setup, run, terms, lanes=simulation.workers, clock=clock)
        self.simulation = simulation
        write_setup(simulation.root / self.run, setup)

    def save(self, directory: Path) -> None:
        for client in sorted(self.moved):
            store = self._store(client)
            if kept := store.rounds():
                write_state(client_file(directory, client), store.read(kept[-1]).state)

    def restore(self, directory: Path | None) -> None:
        self.forget()
        shutil.rmtree(self.simulation.root / self.run, ignore_errors=True)
        self.run = secrets.token_hex(8)
        write_setup(self.simulation.root / self.run, self.setup)
        for client, path in client_files(directory).items() if directory is not None else ():
            self._store(client).write(TrainedRound(0, read_state(path), None))
            self.moved.add(client)

    def close(self) -> None:
        shutil.rmtree(self.simulation.root / self.run, ignore_errors=True)
        self.simulation.close()

    def _store(self, client: int) -> NodeStore:
        return NodeStore(self.simulation.root, self.run, self.setup.experiment.fingerprint_with(None), client)
