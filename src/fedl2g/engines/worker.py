"""A worker process of the `workers` engine: holds its clients for the whole run and serves requests."""

from __future__ import annotations

import sys
import traceback
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from safetensors import SafetensorError

from fedl2g.engines import wire
from fedl2g.engines.host import Host
from fedl2g.errors import FedL2GError, RunError
from fedl2g.files import reason_of
from fedl2g.learning.devices import resolve_device
from fedl2g.payload import Payload
from fedl2g.process import rare_garbage_collection
from fedl2g.setup import Setup


@rare_garbage_collection()
def main() -> None:
    """Serve the connection whose file descriptor is the first argument until the other side is gone."""
    torch.set_num_threads(1)
    connection = Connection(int(sys.argv[1]))
    served: _WorkerHost | None = None
    try:
        while True:
            header, payload = wire.receive(connection)
            try:
                if header["do"] == "start":
                    if served is not None:  # of a run that is over
                        served.host.close()
                    served = _WorkerHost(header)
                elif served is not None:
                    served.serve(connection, header, payload)
                wire.send(connection, {"done": header["do"]})
            except FedL2GError as error:
                wire.send(connection, {"error": type(error).__name__, "message": str(error)})
            except (EOFError, ConnectionError):
                raise
            except Exception:
                wire.send(connection, {"error": "FedL2GError", "message": traceback.format_exc()})
    except (EOFError, OSError):
        if served is not None:
            served.host.close()
        sys.exit(0)


class _WorkerHost:
    """A host and the clients pinned to it."""

    def __init__(self, header: wire.Header) -> None:
        setup = Setup.from_description(header["setup"])
        self.clients = frozenset(header["clients"])
        self.host = Host(
            setup,
            resolve_device(setup.experiment.device, header["worker"]),
            share=(header["worker"], header["workers"]),
            scratch=Path(header["scratch"]) if header["scratch"] else None,
        )

    def serve(self, connection: Connection, header: wire.Header, payload: Payload) -> None:
        """Carry out one request."""
        host = self.host
        match header["do"]:
            case "train":
                host.expect_training(header["clients"])
                for client in header["clients"]:
                    reply = host.train(client, header["round"], payload)
                    wire.send(connection, {"client": client, "report": asdict(reply.report)}, reply.payload)
            case "evaluate":
                for evaluation in host.evaluate(header["clients"], payload):
                    wire.send(connection, asdict(evaluation))
            case "save":
                try:
                    host.save(Path(header["directory"]))
                except (OSError, SafetensorError) as error:  # the worker survives a full disk
                    raise RunError(reason_of(error)) from error
            case "restore":
                host.restore(Path(header["directory"]) if header["directory"] else None, self.clients)
