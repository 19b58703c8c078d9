"""The ServerApp of a deployment: runs the usual round loop over the grid of a SuperLink."""

from __future__ import annotations

import io
import json
import logging
import re
import secrets
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedl2g.deploy.coordinator import read_coordinator
from fedl2g.deploy.link import LimitedGrid
from fedl2g.deploy.outcome import reported
from fedl2g.deploy.registered import read_keys
from fedl2g.display import OneLine
from fedl2g.engines.base import Answer, Check
from fedl2g.engines.flower import require_flower
from fedl2g.engines.flower.engine import GridEngine
from fedl2g.engines.flower.nodes import MessageGrid
from fedl2g.engines.flower.terms import Terms
from fedl2g.errors import FedL2GError, RunError, SettingError
from fedl2g.federation import Federation, Observer
from fedl2g.folder import Folder
from fedl2g.interrupts import SIGNALS
from fedl2g.methods.base import Reply
from fedl2g.payload import Payload
from fedl2g.round.record import RoundRecord, chosen_on, selected_record
from fedl2g.runs.deployed import SiteRecord, read_sites, write_sites
from fedl2g.runs.runner import run_site
from fedl2g.setup import Setup

app = ServerApp()
_log = logging.getLogger("fedl2g.deploy")
DEPLOYMENT = Terms(poll_seconds=0.1, first_pause=1.0, awake=1)
_NODES_FILE = "nodes.json"
_CLIENT = re.compile(r"\bclient ([0-9]{1,6})\b")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment that the run's configuration names, from the start or from its last checkpoint."""
    config = context.run_config
    experiment, keys, out, outcome = (config.get(name) for name in ("experiment", "keys", "run", "outcome"))
    with reported(Path(outcome) if isinstance(outcome, str) and outcome else None):
        if not all(isinstance(value, str) and value for value in (experiment, keys, out)):
            raise SettingError(
                "run config: `experiment` or `keys` (files) or `run` (a directory) is missing; start the run with "
                "`fedl2g deploy run COORDINATOR`, which sets them"
            )
        run(grid, Path(str(experiment)), Path(str(keys)), Path(str(out)))


def run(grid: Grid, experiment: Path, registered: Path, out: Path) -> None:
    """Run a federation of the registered sites over this grid; also logs to log.txt in the run directory."""
    coordinator = read_coordinator(experiment)
    require_flower()
    setup, keys = coordinator.setup, read_keys(registered, coordinator.federation.sites)
    handlers: list[logging.Handler] = []
    best_round, site_records = TellBestRound(), WriteSiteRecords(out, coordinator.federation.sites)
    link = LimitedGrid(grid, setup.experiment.execution.link_seconds)

    def open_grid(setup: Setup, scratch: Path | None) -> DeploymentEngine:
        file = opened.enter_context(Folder(out).appending("log.txt"))
        handlers.append(_log_to(file, coordinator.federation.sites))
        for client in sorted(set(range(setup.experiment.clients)) - set(keys.values())):
            _log.warning("client %d (%s) has no registered key", client, coordinator.federation.sites[client])
        best_round.engine = site_records.engine = DeploymentEngine(link, setup, keys)
        return best_round.engine

    opened = ExitStack()
    try:
        with _stop_when_asked():
            result = run_site(setup, out, open_grid, [best_round, site_records])
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
def _stop_when_asked() -> Iterator[None]:
    """Stop at once, and release the lock, when Flower sends SIGINT, or the system SIGTERM or SIGHUP."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        for one in SIGNALS:
            signal.signal(one, signal.SIG_IGN)
        raise RunError(
            "Flower: ended the run (`flwr stop`, or its SuperLink is gone); the last checkpoint is intact; start the "
            "run again to continue"
        )

    before = {one: signal.signal(one, end) for one in SIGNALS}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


class _SiteNames(OneLine):
    """Appends to a line the names of the sites whose client numbers it mentions."""

    def __init__(self, sites: Sequence[str]) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self._sites = sites

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        numbers = dict.fromkeys(int(number) for number in _CLIENT.findall(text))
        known = [self._sites[number] for number in numbers if number < len(self._sites)]
        return f"{text} [{', '.join(known)}]" if known else text


def _log_to(file: BinaryIO, sites: Sequence[str]) -> logging.Handler:
    handler = logging.StreamHandler(io.TextIOWrapper(file, encoding="utf-8", write_through=True))
    handler.setFormatter(_SiteNames(sites))
    logger = logging.getLogger("fedl2g")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    return handler


class DeploymentEngine(GridEngine):
    """The engine of a deployment: checkpoints hold only the server's state, the sites store their own models."""

    def __init__(self, grid: MessageGrid, setup: Setup, keys: Mapping[bytes, int]) -> None:
        super().__init__(grid, setup, secrets.token_hex(8), DEPLOYMENT, lanes=setup.experiment.clients, keys=keys)

        self.train_samples: dict[int, int] = {}  # of the clients that have trained

    def train(self, round: int, clients: Sequence[int], payload: Payload, check: Check) -> Iterator[Answer]:
        for answer in super().train(round, clients, payload, check):
            if isinstance(answer, Reply):
                self.train_samples[answer.client] = answer.report.samples
            yield answer

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


class TellBestRound(Observer):
    """Tells the sites the best round so far, with every request and at the end, so that they keep its models."""

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


class WriteSiteRecords(Observer):
    """Writes the records of a run's sites: their names, and what they allow the records to say about them."""

    engine: DeploymentEngine | None = None

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self._path = path
        self._names = names
        self._test_samples: dict[int, int] = {}
        self._written: dict[int, SiteRecord] = {}

    def on_start(self, federation: Federation) -> None:
        self._written = read_sites(self._path)
        for record in federation.history:
            self._count(record)
        self._write()

    def on_round(self, federation: Federation, record: RoundRecord) -> None:
        self._count(record)
        self._write()

    def _count(self, record: RoundRecord) -> None:
        if record.accuracy is not None:
            self._test_samples |= record.accuracy.samples

    def _write(self) -> None:
        sites = {client: self._record(client) for client in range(len(self._names))}
        if sites != self._written:
            write_sites(self._path, sites)
            self._written = sites

    def _record(self, client: int) -> SiteRecord:
        disclosed = self.engine.nodes.disclosed.get(client) if self.engine is not None else None
        if self.engine is None or disclosed is None:  # not connected since the run was resumed: keep the earlier record
            return self._written.get(client, SiteRecord(self._names[client]))
        if not disclosed.samples:
            return SiteRecord(self._names[client], disclosed.model)
        before = self._written.get(client)
        train = self.engine.train_samples.get(client, before.train_samples if before is not None else None)
        return SiteRecord(self._names[client], disclosed.model, train, self._test_samples.get(client))
