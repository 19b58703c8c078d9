"""A stage of an upload on its way from the method to the wire."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedl2g.learning.client import Client
from fedl2g.methods.base import Report
from fedl2g.payload import Payload


@dataclass(frozen=True)
class Upload:
    """What a client is about to send, and what a stage may need to know of it."""

    client: int
    round: int
    payload: Payload
    report: Report
    received: Payload  # the broadcast that it answers
    decode: Callable[[Payload], Payload]  # what a payload stands for, where the method compresses what it sends


class Stage:
    """Something that happens to every upload of a process's clients."""

    def prepare(self, client: Client) -> None:
        """A client has been built, and has not trained yet."""

    def apply(self, upload: Upload) -> Upload:
        """The upload after this stage."""
        return upload
