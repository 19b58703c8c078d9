"""A process of the simulation: serves messages to any of the nodes, one after the other, with Flower's ClientApp."""

from __future__ import annotations

import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from flwr.app import Context, Message, RecordDict
from torch import Tensor

from fedl2g.engines import wire
from fedl2g.engines.flower.actor import client_app
from fedl2g.engines.flower.internals import take_identity
from fedl2g.engines.flower.records import pack_records, unpack_records


def main() -> None:
    """Serve the connection whose file descriptor is the first argument until the other side is gone."""
    torch.set_num_threads(1)
    take_identity()
    try:
        serve(Connection(int(sys.argv[1])))
    except (EOFError, OSError):
        sys.exit(0)


def serve(connection: Connection) -> None:
    """Answer messages; raises EOFError or OSError when the other side is gone."""
    while True:
        header, payload = wire.receive(connection)
        try:
            answer = pack_records(_answer(header, unpack_records(payload["records"].numpy().tobytes())))
        except Exception:
            wire.send(connection, {"error": "ClientApp", "message": traceback.format_exc()})
        else:
            wire.send(connection, {"done": header["message"]}, {"records": as_tensor(answer)})


def _answer(header: wire.Header, records: RecordDict) -> RecordDict:
    node, config = header["node"], {"partition-id": header["client"], "worker": header["worker"]}
    request = Message(records, node, header["kind"])
    return client_app(Path(header["root"]))(request, Context(1, node, config, RecordDict(), {})).content


def as_tensor(data: bytes) -> Tensor:
    """Bytes for the connection between processes, which carries tensors."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


if __name__ == "__main__":
    main()
