"""The `workers` engine: persistent processes, one torch thread each, every client pinned to one of them for the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

from fedl2g import errors
from fedl2g.engines import wire
from fedl2g.engines.base import Check, Evaluation, Rejected, WorkerLost, register_engine
from fedl2g.engines.processes import WorkerProcess, release_process, take_process
from fedl2g.methods.base import Reply, Report
from fedl2g.methods.registry import get_method
from fedl2g.models.calibration import step_seconds
from fedl2g.payload import Payload
from fedl2g.setup import Setup


@dataclass(frozen=True)
class _Worker:
    """One worker's process and the clients pinned to it."""

    number: int
    clients: list[int]
    process: WorkerProcess


class WorkersEngine:
    """Hosts in worker processes; only payloads and metrics are exchanged, each process memory-maps the data."""

    retries = False

    def __init__(self, setup: Setup, scratch: Path | None = None) -> None:
        self.setup = setup
        self.scratch = scratch
        count = min(setup.experiment.execution.workers, setup.experiment.clients)
        self.placement = balance(_costs(setup), count)
        self.lanes = count
        self.home = {client: number for number, clients in enumerate(self.placement) for client in clients}
        self.traits = get_method(setup.experiment.method.name).traits
        self._workers: list[_Worker] = []
        self._start()

    def _start(self) -> None:
        self._workers = []
        try:
            for number, own in enumerate(self.placement):
                self._workers.append(_Worker(number, own, take_process()))
            self._introduce(self._workers)
        except KeyboardInterrupt:  # do not wait for workers that are still importing torch
            for worker in self._workers:
                worker.process.kill()
            raise
        except BaseException:
            self.close()
            raise

    def _introduce(self, workers: Sequence[_Worker]) -> None:
        """Tell each worker its clients and their setup."""
        described = self.setup.describe()
        for worker in workers:
            start = {
                "do": "start",
                "worker": worker.number,
                "workers": len(self.placement),
                "scratch": str(self.scratch.resolve()) if self.scratch else None,
                "clients": worker.clients,
                "setup": described,
            }
            self._send(worker, wire.pack(start))
        for _ in self._answers(workers):
            pass

    def train(self, round: int, clients: Sequence[int], payload: Payload, check: Check) -> Iterator[Reply]:
        asked = self._request("train", clients, payload, round=round)
        for header, upload in self._answers(asked):
            yield Reply(header["client"], upload, Report(**header["report"]))

    def evaluate(self, clients: Sequence[int], payload: Payload) -> list[Evaluation | Rejected]:
        asked = self._request("evaluate", clients, payload if self.traits.predicts_with_broadcast else {})
        found = {header["client"]: Evaluation(**header) for header, _ in self._answers(asked)}
        return [found[client] for client in clients]

    def save(self, directory: Path) -> None:
        self._request_all({"do": "save", "directory": str(directory.resolve())})

    def restore(self, directory: Path | None) -> None:
        self._request_all({"do": "restore", "directory": str(directory.resolve()) if directory else None})

    def revive(self) -> None:
        # All workers are replaced: the survivors may be in the middle of a request whose answers would not be read.
        for worker in self._workers:
            worker.process.kill()
        self._start()

    def close(self) -> None:
        for worker in self._workers:
            release_process(worker.process)
        self._workers = []

    @property
    def pids(self) -> list[int]:
        """The process id of each worker, by the worker's number."""
        return [worker.process.pid for worker in self._workers]

    def _request(self, what: str, clients: Sequence[int], payload: Payload, **more: object) -> list[_Worker]:
        """Send each worker that holds any of the clients a request for its own; returns these workers."""
        asked = []
        for worker in self._workers:
            own = [client for client in clients if self.home[client] == worker.number]
            if own:
                self._send(worker, wire.pack({"do": what, "clients": own, **more}, payload))
                asked.append(worker)
        return asked

    def _request_all(self, header: wire.Header) -> None:
        """Send every worker the same request and wait until all have finished."""
        message = wire.pack(header)
        for worker in self._workers:
            self._send(worker, message)
        for _ in self._answers(self._workers):
            pass

    def _send(self, worker: _Worker, message: bytes) -> None:
        try:
            worker.process.send(message)
        except OSError as error:
            raise self._lost(worker) from error

    def _answers(self, asked: Sequence[_Worker]) -> Iterator[tuple[wire.Header, Payload]]:
        """Yield the workers' answers as they arrive, until every worker is done."""
        busy = {worker.process.connection: worker for worker in asked}
        while busy:
            for connection in wait(list(busy)):
                assert isinstance(connection, Connection)
                worker = busy[connection]
                try:
                    header, payload = worker.process.receive()
                except (EOFError, OSError) as error:
                    raise self._lost(worker) from error
                if "error" in header:
                    kind = getattr(errors, header["error"], errors.FedL2GError)
                    raise kind(header["message"])
                if "done" in header:
                    del busy[connection]
                else:
                    yield header, payload

    def _lost(self, worker: _Worker) -> WorkerLost:
        code = worker.process.exit_code()
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return WorkerLost(
            f"worker {worker.number} (process {worker.process.pid}, {len(worker.clients)} clients) died: {how}"
        )


def balance(costs: Sequence[float], workers: int) -> list[list[int]]:
    """Distribute clients so that the workers' total costs are close: greedily, most expensive first."""
    loads = [0.0] * workers
    placement: list[list[int]] = [[] for _ in range(workers)]
    for client in sorted(range(len(costs)), key=lambda c: (-costs[c], c)):
        least = min(range(workers), key=lambda w: (loads[w], len(placement[w])))
        loads[least] += costs[client]
        placement[least].append(client)
    return [sorted(clients) for clients in placement]


def _costs(setup: Setup) -> list[float]:
    """The expected seconds of each client's round: its training steps times its architecture's measured step time."""
    experiment, dataset = setup.experiment, setup.dataset
    seconds = {
        name: step_seconds(
            name,
            classes=dataset.classes,
            inputs=dataset.schema,
            batch_size=experiment.batch_size,
            layout="channels_last" if name in experiment.channels_last else "contiguous",
        )
        for name in dict.fromkeys(experiment.architectures)
    }
    steps = (max(1, len(part) // experiment.batch_size) for part in setup.partition.train)
    return [n * experiment.local_epochs * seconds[setup.architecture(c)] for c, n in enumerate(steps)]


register_engine("workers", WorkersEngine)
