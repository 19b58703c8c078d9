"""Messages between the main process and its workers: a JSON header and a payload, no pickled objects."""

from __future__ import annotations

import json
from multiprocessing.connection import Connection
from typing import Any

from fedl2g.payload import Payload, from_bytes, to_bytes

Header = dict[str, Any]


def send(connection: Connection, header: Header, payload: Payload | None = None) -> None:
    """Send one message."""
    send_packed(connection, pack(header, payload))


def pack(header: Header, payload: Payload | None = None) -> bytes:
    """Serialize a message, for example to send it to several workers."""
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "big") + text + (to_bytes(payload) if payload else b"")


def send_packed(connection: Connection, message: bytes) -> None:
    """Send a message serialized by `pack`."""
    connection.send_bytes(message)


def receive(connection: Connection) -> tuple[Header, Payload]:
    """Wait for one message; raises EOFError or OSError when the other side is gone."""
    data = connection.recv_bytes()
    end = 8 + int.from_bytes(data[:8], "big")
    header: Header = json.loads(data[8:end])
    return header, from_bytes(data[end:]) if len(data) > end else {}
