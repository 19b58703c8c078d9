"""Local training: each client alone, cross entropy only, nothing exchanged. The baseline for every method."""

from __future__ import annotations

from fedl2g.methods.base import ClientHalf, Options, ServerHalf, Trained, Traits
from fedl2g.methods.registry import register_method
from fedl2g.payload import Payload


class LocalOptions(Options):
    """Each client trains alone; nothing is exchanged."""

    name: str = "local"


class LocalServer(ServerHalf[LocalOptions]):
    """A server that exchanges nothing."""


class LocalClient(ClientHalf[LocalOptions]):
    """Trains on CE(f(x), y) and sends nothing."""

    def train(self, round: int, payload: Payload) -> Trained:
        return Trained({}, self.client.fit(round, self.own_loss))


register_method(
    "local",
    options=LocalOptions,
    server=LocalServer,
    client=LocalClient,
    traits=Traits(
        advice="Always run it: a method that does not beat it helps nobody. It has no options and sends nothing.",
    ),
)
