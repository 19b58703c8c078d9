"""The `flower` engine on one machine: Flower's simulation runtime, its nodes served by Ray actors.

The actors keep nothing from one message to the next: each client lives in a store in a temporary folder, as it would
live on its own node's disk in a deployment.
"""

from __future__ import annotations

import json
import logging
import queue
import secrets
import shutil
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fedl2g.data import Partition, load_dataset
from fedl2g.engines.base import Absence
from fedl2g.engines.flower import messages
from fedl2g.engines.flower.engine import GridEngine, Kind, Patience, error_of
from fedl2g.engines.flower.messages import Refused, Request
from fedl2g.engines.flower.node import Node
from fedl2g.engines.flower.store import NodeStore, TrainedRound
from fedl2g.engines.states import client_file, client_files, read_state, write_state
from fedl2g.errors import FedL2GError, RunError
from fedl2g.experiment import Experiment
from fedl2g.learning.devices import resolve_device
from fedl2g.references import load_plugin, loaded_plugins
from fedl2g.setup import Setup

_PATIENCE = Patience(poll_seconds=0.02, first_pause=0.2, attempts=12)  # two minutes: an actor that died starts again
_LIMIT = 2**40  # bytes of a broadcast: it comes from this machine


def open_simulation(setup: Setup) -> SimulationEngine:
    """An engine with all the experiment's clients, on the shared simulation if there is one that fits."""
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
    """Start Ray once for all runs with this many clients inside the block."""
    simulation = Simulation(clients, workers)
    _shared.append(simulation)
    try:
        yield
    finally:
        _shared.remove(simulation)
        simulation.close()


class Simulation:
    """Flower's simulation runtime in a thread of its own; its ServerApp hands the grid over and waits for the end."""

    def __init__(self, nodes: int, workers: int) -> None:
        self.nodes = nodes
        self.error: BaseException | None = None  # why the simulation ended before its time
        self.root = Path(tempfile.mkdtemp(prefix="fedl2g-flower-"))
        self._workers = min(workers, nodes)
        self._grids: queue.Queue[Grid | BaseException] = queue.Queue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flower simulation", daemon=True)
        self._thread.start()
        grid = self._grids.get()
        if isinstance(grid, BaseException):
            self.close()
            raise RunError(f"Flower's simulation did not start: {grid}") from grid
        self.grid = grid

    def _run(self) -> None:
        logging.getLogger("flwr").setLevel(logging.ERROR)
        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            self._grids.put(grid)
            self._closing.wait()

        resources = {"num_cpus": 1, "num_gpus": 0.0, "max_restarts": -1, "max_task_retries": 0}
        backend = {
            "init_args": {"num_cpus": self._workers, "include_dashboard": False, "_node_ip_address": "127.0.0.1"},
            "client_resources": resources,
        }
        try:
            run_simulation(server, client_app(self.root), self.nodes, backend_config=backend)  # type: ignore[arg-type]
        except BaseException as error:
            self.error = error
            self._grids.put(error)  # for who waits for the start

    def close(self) -> None:
        """End the simulation and remove its clients."""
        self._closing.set()
        self._thread.join(timeout=60)
        shutil.rmtree(self.root, ignore_errors=True)


class SimulationEngine(GridEngine):
    """A run's clients on the nodes of a simulation."""

    def __init__(self, simulation: Simulation, setup: Setup, *, owns: bool) -> None:
        super().__init__(simulation.grid, setup, secrets.token_hex(8), _PATIENCE)
        self.simulation = simulation
        self.owns = owns
        self._moved: set[int] = set()
        self._write_site()

    def _write_site(self) -> None:
        folder = self.simulation.root / self.run
        folder.mkdir(parents=True)
        about = {
            "experiment": self.setup.experiment.model_dump(mode="json"),
            "plugins": loaded_plugins(),
            "dataset": self.setup.dataset.fingerprint,
            "partition": self.setup.partition.to_json(),
        }
        (folder / "setup.json").write_text(json.dumps(about), encoding="utf-8")

    def save(self, directory: Path) -> None:
        for client in sorted(self._moved):
            store = self._store(client)
            state = store.read(store.rounds()[-1]).state
            write_state(client_file(directory, client), state)

    def restore(self, directory: Path | None) -> None:
        self.forget()
        self._moved.clear()
        shutil.rmtree(self.simulation.root / self.run, ignore_errors=True)
        self.run = secrets.token_hex(8)
        self._write_site()
        for client, path in client_files(directory).items() if directory is not None else ():
            self._store(client).write(TrainedRound(0, read_state(path), None))
            self._moved.add(client)

    def close(self) -> None:
        shutil.rmtree(self.simulation.root / self.run, ignore_errors=True)
        if self.owns:
            self.simulation.close()

    def _store(self, client: int) -> NodeStore:
        return NodeStore(self.simulation.root, self.run, self.setup.experiment.fingerprint, client)

    def _moves(self, client: int) -> None:
        self._moved.add(client)

    def _refusal(self, kind: Kind, request: Request, client: int, refusal: Refused) -> Absence:
        raise error_of(refusal)  # all clients are this machine's: what one of them meets is the run's own error

    def _before_asking_again(self, absences: Iterable[Absence]) -> None:
        absence = next(iter(absences))  # on this machine it would answer the same again
        raise RunError(f"client {absence.client}: {absence.reason}")

    def _meet(self, looking: bool) -> None:
        if self.simulation.error is not None:  # nobody would ever answer
            raise RunError(f"Flower's simulation ended: {self.simulation.error}") from self.simulation.error
        super()._meet(looking)


def client_app(root: Path) -> ClientApp:
    """The app that the simulation's actors run for every node."""
    app = ClientApp()
    app.query()(_introduce)
    app.train()(partial(_answer, _train, root))
    app.evaluate()(partial(_answer, _evaluate, root))
    return app


def _introduce(message: Message, context: Context) -> Message:
    return Message(messages.pack_identity(int(context.node_config["partition-id"])), reply_to=message)


def _answer(serve: Callable[[Node, Request], RecordDict], root: Path, message: Message, context: Context) -> Message:
    try:
        setup = _site(root / messages.unpack_run(message.content))  # first: it imports the user's own methods
        request = messages.unpack_request(message.content, _LIMIT, trust=True)  # the experiment is the user's own
        node = Node(int(context.node_config["partition-id"]), setup, resolve_device(setup.experiment.device), root)
        return Message(serve(node, request), reply_to=message)
    except FedL2GError as error:
        refusal = messages.pack_refusal(error)
    except Exception:  # told once, in its own words: Flower would call it a failed node, which is asked again
        refusal = messages.pack_refusal(FedL2GError(traceback.format_exc()))
    return Message(refusal, reply_to=message)


def _train(node: Node, request: Request) -> RecordDict:
    return messages.pack_reply(request.run, request.round, node.train(request))


def _evaluate(node: Node, request: Request) -> RecordDict:
    return messages.pack_evaluation(request.run, request.round, node.evaluate(request))


_sites: dict[Path, Setup] = {}  # an actor serves many messages of one run: the partition is read once


def _site(folder: Path) -> Setup:
    if folder not in _sites:
        about = json.loads((folder / "setup.json").read_text(encoding="utf-8"))
        for plugin in about["plugins"]:
            load_plugin(plugin)
        experiment = Experiment(**about["experiment"])
        dataset = load_dataset(experiment.dataset, samples=experiment.samples, image_size=experiment.image_size)
        if dataset.fingerprint != about["dataset"]:
            raise RunError("the dataset changed while the run was starting; start it again")
        _sites.clear()
        _sites[folder] = Setup(experiment, dataset, Partition.from_json(about["partition"]))
    return _sites[folder]
