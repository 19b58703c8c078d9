"""The `flower` engine on one machine: Flower's simulation runtime, with nodes served by Ray actors.

The actors are stateless: each client's state is in a store in a temporary folder, as it would be on its node's disk in
a deployment.
"""

from __future__ import annotations

import logging
import os
import queue
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fedl2g.engines.flower import cleanup
from fedl2g.engines.flower.actor import client_app, write_setup
from fedl2g.engines.flower.engine import GridEngine
from fedl2g.engines.flower.store import NodeStore, TrainedRound
from fedl2g.engines.flower.terms import Clock, Terms
from fedl2g.engines.states import client_file, client_files, read_state, write_state
from fedl2g.errors import RunError
from fedl2g.interrupts import SIGNALS
from fedl2g.setup import Setup
from fedl2g.temporary import remove_folder, temporary_folder

# All clients are on this machine: a refusal is an error of the run itself, and a retry would give the same unusable
# reply. Twelve attempts take two minutes, enough for a dead actor to be restarted.
SIMULATION = Terms(poll_seconds=0.02, first_pause=0.2, attempts=12, refusal_ends_run=True, retries=False)
_LONGEST_BASE = 20  # characters: the path of a socket has 107 at most, and Ray's own names take most of them


def open_simulation(setup: Setup) -> SimulationEngine:
    """Open an engine with all the experiment's clients, on the shared simulation if there is a matching one."""
    if _shared and _shared[-1].nodes == setup.experiment.clients:
        return SimulationEngine(_shared[-1], setup, owns=False)
    simulation = Simulation(setup.experiment.clients, setup.experiment.execution.workers)
    try:
        return SimulationEngine(simulation, setup, owns=True)
    except BaseException:
        simulation.close()
        raise


_shared: list[Simulation] = []


@contextmanager
def shared_simulation(clients: int, workers: int) -> Iterator[None]:
    """Share one Ray instance among all runs with this many clients inside the block."""
    simulation = Simulation(clients, workers)
    _shared.append(simulation)
    try:
        yield
    finally:
        _shared.remove(simulation)
        simulation.close()


class RunningSimulation(Protocol):
    """The part of a simulation that an engine uses."""

    root: Path
    """Holds one folder per run with its clients' stores."""
    grid: Grid
    workers: int
    """How many actors serve the nodes."""

    @property
    def error(self) -> BaseException | None:
        """The error that ended the simulation, if any."""

    def close(self) -> None:
        """Stop the simulation and delete its clients."""


class Simulation:
    """Flower's simulation runtime in its own thread; its ServerApp hands over the grid and waits for `close`."""

    def __init__(self, nodes: int, workers: int) -> None:
        self.nodes = nodes
        self.workers = min(workers, nodes)
        self.error: BaseException | None = None  # what ended the simulation before it was closed
        self.root = _folder()
        self._cleanup = _start_cleanup(self.root)
        self._started: queue.Queue[Grid | BaseException] = queue.Queue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flower simulation", daemon=True)
        self._thread.start()
        try:
            grid = self._started.get()
        except KeyboardInterrupt:
            self.close()
            raise
        if isinstance(grid, BaseException):
            self.close()
            raise RunError(f"execution.engine: Flower's simulation did not start: {grid}") from grid
        self.grid: Grid = grid

    def _run(self) -> None:
        # Ray's processes inherit the mask: a signal to all processes asks this one alone for an orderly end.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        logging.getLogger("flwr").setLevel(logging.ERROR)
        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            self._started.put(grid)
            self._closing.wait()

        resources = {"num_cpus": 1, "num_gpus": 0.0, "max_restarts": -1, "max_task_retries": 0}
        backend = {
            "init_args": {
                "num_cpus": self.workers,
                "include_dashboard": False,
                "logging_level": logging.ERROR,
                "_node_ip_address": "127.0.0.1",
                "_temp_dir": str(self.root / "ray"),
            },
            "client_resources": resources,
        }
        try:
            run_simulation(server, client_app(self.root), self.nodes, backend_config=backend)  # type: ignore[arg-type]
        except BaseException as error:
            self.error = error
            self._started.put(error)  # unblocks the constructor

    def close(self) -> None:
        """Stop the simulation and delete its clients."""
        self._closing.set()
        self._thread.join(timeout=60)
        self._cleanup.communicate()
        remove_folder(self.root)


def _folder() -> Path:
    """A folder for the clients' stores and Ray's files; Ray's sockets below it leave little room for its name."""
    base = tempfile.gettempdir()
    return temporary_folder("flower", Path(base if len(base) <= _LONGEST_BASE else "/tmp"))


def _start_cleanup(folder: Path) -> subprocess.Popen[bytes]:
    """Start the process that cleans up after this one (cleanup.py); to close its standard input is the word for it."""
    command = [sys.executable, "-I", cleanup.__file__, str(folder), str(os.getpid())]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


class SimulationEngine(GridEngine):
    """A run's clients on the nodes of a simulation; closing the engine closes a simulation that it `owns`."""

    def __init__(
        self,
        simulation: RunningSimulation,
        setup: Setup,
        *,
        owns: bool,
        terms: Terms = SIMULATION,
        clock: Clock = time,
    ) -> None:
        terms = replace(terms, ensure_reachable=self._ensure_running)
        run = secrets.token_hex(8)
        super().__init__(simulation.grid, setup, run, terms, lanes=simulation.workers, clock=clock)
        self.simulation = simulation
        self.owns = owns
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
        if self.owns:
            self.simulation.close()

    def _store(self, client: int) -> NodeStore:
        return NodeStore(self.simulation.root, self.run, self.setup.experiment.fingerprint_with(None), client)

    def _ensure_running(self) -> None:
        if (error := self.simulation.error) is not None:
            raise RunError(f"execution.engine: Flower's simulation ended: {error}") from error
