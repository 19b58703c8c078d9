"""The ServerApp of a deployment: runs the usual round loop over the grid of a SuperLink."""

from __future__ import annotations

import io
import json
import logging
import secrets
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedl2g.deploy.coordinator import read_coordinator
from fedl2g.deploy.link import LimitedGrid
from fedl2g.deploy.registered import read_keys
from fedl2g.display import OneLine
from fedl2g.engines.flower import require_flower
from fedl2g.engines.flower.engine import GridEngine
from fedl2g.engines.flower.nodes import MessageGrid
from fedl2g.engines.flower.terms import Terms
from fedl2g.errors import FedL2GError, RunError, SettingError
from fedl2g.federation import Federation, Observer
from fedl2g.folder import Folder
from fedl2g.round.record import RoundRecord, chosen_on, selected_record
from fedl2g.runs.runner import run_site
from fedl2g.setup import Setup

app = ServerApp()
_log = logging.getLogger("fedl2g.deploy")
DEPLOYMENT = Terms(poll_seconds=0.25, first_pause=1.0)
_NODES_FILE = "nodes.json"


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment that the run's configuration names, from the start or from its last checkpoint."""
    experiment, keys, out = (context.run_config.get(name) for name in ("experiment", "keys", "run"))
    if not isinstance(experiment, str) or not isinstance(keys, str) or not isinstance(out, str):
        raise SettingError(
            "run config: `experiment` or `keys` (files) or `run` (a directory) is missing; set them in the app's "
            "pyproject.toml"
        )
    run(grid, Path(experiment), Path(keys), Path(out))


def run(grid: Grid, experiment: Path, registered: Path, out: Path) -> None:
    """Run a federation of the registered sites over this grid; also logs to log.txt in the run directory."""
    coordinator = read_coordinator(experiment)
    require_flower()
    setup, keys = coordinator.setup, read_keys(registered, coordinator.federation.sites)
    handlers: list[logging.Handler] = []
    teller = TellBest()
    link = LimitedGrid(grid, setup.experiment.execution.link_seconds)

    def open_grid(setup: Setup, scratch: Path | None) -> DeploymentEngine:
        handlers.append(_log_to(opened.enter_context(Folder(out).appending("log.txt"))))
        for client in sorted(set(range(setup.experiment.clients)) - set(keys.values())):
            _log.warning("client %d (%s) has no registered key", client, coordinator.federation.sites[client])
        teller.engine = DeploymentEngine(link, setup, keys)
        return teller.engine

    opened = ExitStack()
    try:
        with _stop_on_sigint():
            result = run_site(setup, out, open_grid, [teller])
        best, chosen = result.best_accuracy, chosen_on(result.selection)
        _log.info("the run is finished: best accuracy %.4f in round %d (%s)", best, result.best_round, chosen)
    except FedL2GError as error:
        _log.error("the run stopped: %s", error)
        raise
    finally:
        for handler in handlers:
            logging.getLogger("fedl2g").removeHandler(handler)
            handler.close()
        opened.close()


@contextmanager
def _stop_on_sigint() -> Iterator[None]:
    """Stop at once when Flower sends SIGINT, so that the directory is unlocked for the next start of the run."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise RunError(
            "Flower: ended the run (`flwr stop`, or its SuperLink is gone); the last checkpoint is intact; start the "
            "run again to continue"
        )

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _log_to(file: BinaryIO) -> logging.Handler:
    handler = logging.StreamHandler(io.TextIOWrapper(file, encoding="utf-8", write_through=True))
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("fedl2g")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    return handler


class DeploymentEngine(GridEngine):
    """The engine of a deployment: checkpoints hold only the server's state, the sites store their own models."""

    def __init__(self, grid: MessageGrid, setup: Setup, keys: Mapping[bytes, int]) -> None:
        super().__init__(grid, setup, secrets.token_hex(8), DEPLOYMENT, lanes=setup.experiment.clients, keys=keys)

    def save(self, directory: Path) -> None:
        (directory / _NODES_FILE).write_text(json.dumps({"run": self.run, "round": self.round}), encoding="utf-8")

    def restore(self, directory: Path | None) -> None:
        self.forget()
        if directory is None:
            self.run, self.round = secrets.token_hex(8), 0
            return
        try:
            about = json.loads(Folder(directory).text(_NODES_FILE))
            self.run, self.round = str(about["run"]), int(about["round"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{directory}: was not written by a deployment; choose another run directory") from error
        _log.info("the run continues after round %d", self.round)

    def close(self) -> None:
        """Nothing to close: the nodes belong to their institutions."""


class TellBest(Observer):
    """Tells the sites which round is the best so far, with every request and at the end: they keep its models."""

    engine: DeploymentEngine | None = None

    def on_start(self, federation: Federation) -> None:
        best = selected_record(federation.history)
        if self.engine is not None:
            self.engine.best = best.round if best is not None else None

    def on_round(self, federation: Federation, record: RoundRecord) -> None:
        self.on_start(federation)

    def on_end(self, federation: Federation) -> None:
        if self.engine is not None:
            self.engine.tell_best()
