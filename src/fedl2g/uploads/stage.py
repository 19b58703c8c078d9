"""The interface of upload stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedl2g.learning.client import Client
from fedl2g.methods.base import Report
from fedl2g.payload import Payload


@dataclass(frozen=True)
class Upload:
    """What a client is about to send, with the context a stage may need."""

    client: int
    round: int
    payload: Payload
    report: Report
    received: Payload  # the broadcast it responds to
    decode: Callable[[Payload], Payload]  # undoes the method's compression, if any


class Stage:
    """A transformation applied to every upload of a host's clients."""

    def prepare(self, client: Client) -> None:
        """Called for each client after it is built and before it trains."""

    def apply(self, upload: Upload) -> Upload:
        """Return the transformed upload."""
        return upload
