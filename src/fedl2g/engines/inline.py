"""The `inline` engine: all clients in this process, one after the other, on one thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedl2g.engines.base import Check, Evaluation, Rejected, register_engine
from fedl2g.engines.host import Host
from fedl2g.learning.devices import resolve_device
from fedl2g.methods.base import Reply
from fedl2g.payload import Payload
from fedl2g.process import one_thread
from fedl2g.setup import Setup


class InlineEngine:
    """One host, called directly."""

    lanes = 1
    retries = False

    def __init__(self, setup: Setup, scratch: Path | None = None) -> None:
        self.host = Host(setup, resolve_device(setup.experiment.device), scratch=scratch)

    def train(self, round: int, clients: Sequence[int], payload: Payload, check: Check) -> Iterator[Reply]:
        self.host.expect_training(clients)
        for client in clients:
            with one_thread():
                reply = self.host.train(client, round, payload)
            yield reply

    def evaluate(self, clients: Sequence[int], payload: Payload) -> list[Evaluation | Rejected]:
        with one_thread():
            return [*self.host.evaluate(clients, payload)]

    def save(self, directory: Path) -> None:
        self.host.save(directory)

    def restore(self, directory: Path | None) -> None:
        with one_thread():
            self.host.restore(directory)

    def revive(self) -> None:
        """Do nothing: the clients live in this process, so no worker can be lost."""

    def close(self) -> None:
        self.host.close()


register_engine("inline", InlineEngine)
