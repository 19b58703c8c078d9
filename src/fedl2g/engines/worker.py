"""A worker process of the `workers` engine: holds its clients for the whole run and answers requests."""

from __future__ import annotations

import signal
import sys
import traceback
import warnings
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from safetensors import SafetensorError

from fedl2g.data import Partition, load_dataset
from fedl2g.data.cache import open_whole
from fedl2g.engines import wire
from fedl2g.engines.host import Host
from fedl2g.errors import FedL2GError, RunError
from fedl2g.experiment import Experiment
from fedl2g.learning.devices import resolve_device
from fedl2g.payload import Payload
from fedl2g.process import rare_garbage_collection
from fedl2g.references import load_plugin
from fedl2g.setup import Setup


@rare_garbage_collection()
def main() -> None:
    """Serve the connection whose file descriptor is the first argument until the other side is gone."""
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")  # its own use of torch.jit in the JVP
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process's to handle
    torch.set_num_threads(1)
    connection = Connection(int(sys.argv[1]))
    host: Host | None = None
    try:
        while True:
            header, payload = wire.receive(connection)
            try:
                if header["do"] == "start":
                    host = _start(header)
                elif host is not None:
                    _serve(host, connection, header, payload)
                wire.send(connection, {"done": header["do"]})
            except FedL2GError as error:
                wire.send(connection, {"error": type(error).__name__, "message": str(error)})
            except (EOFError, ConnectionError):
                raise
            except Exception:
                wire.send(connection, {"error": "FedL2GError", "message": traceback.format_exc()})
    except (EOFError, OSError):
        if host is not None:
            host.close()
        sys.exit(0)


def _start(header: wire.Header) -> Host:
    for plugin in header["plugins"]:
        load_plugin(plugin)
    experiment = Experiment(**header["experiment"])
    # The folder that the main process has opened: a user's function must not be called again by every worker.
    dataset = open_whole(Path(header["folder"])) if header["folder"] else None
    if dataset is None:
        dataset = load_dataset(experiment.dataset, samples=experiment.samples, image_size=experiment.image_size)
    if dataset.fingerprint != header["dataset"]:
        raise RunError("the dataset changed while the run was starting; start it again")
    scratch = Path(header["scratch"]) if header["scratch"] else None
    setup = Setup(experiment, dataset, Partition.from_json(header["partition"]), scratch)
    device = resolve_device(experiment.device, header["worker"])
    return PinnedHost(setup, device, frozenset(header["clients"]), (header["worker"], header["workers"]))


class PinnedHost(Host):
    """A host for some of the clients: those pinned to this worker."""

    def __init__(self, setup: Setup, device: torch.device, clients: frozenset[int], share: tuple[int, int]) -> None:
        super().__init__(setup, device, share)
        self.clients = clients

    def holds(self, client: int) -> bool:
        return client in self.clients


def _serve(host: Host, connection: Connection, header: wire.Header, payload: Payload) -> None:
    match header["do"]:
        case "train":
            host.expect(header["clients"])
            for client in header["clients"]:
                reply = host.train(client, header["round"], payload)
                wire.send(connection, {"client": client, "report": asdict(reply.report)}, reply.payload)
        case "evaluate":
            host.expect(header["clients"], evaluation=True)
            for client in header["clients"]:
                wire.send(connection, asdict(host.evaluate(client, payload)))
        case "save":
            try:
                host.save(Path(header["directory"]))
            except (OSError, SafetensorError) as error:  # a full disk is no reason to die
                raise RunError(getattr(error, "strerror", None) or str(error)) from error
        case "restore":
            host.restore(Path(header["directory"]) if header["directory"] else None)


if __name__ == "__main__":
    main()
