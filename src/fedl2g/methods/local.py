"""Local training: each client alone, cross entropy only, nothing exchanged. The baseline every method must beat."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy

from fedl2g.methods.base import ClientHalf, Options, ServerHalf
from fedl2g.methods.registry import register_method
from fedl2g.payload import Payload


class LocalOptions(Options):
    """Each client trains alone; nothing is exchanged."""

    name: str = "local"


class LocalServer(ServerHalf[LocalOptions]):
    """Has nothing to do."""

    uploads = "nothing"


class LocalClient(ClientHalf[LocalOptions]):
    """Loss: CE(f(x), y)."""

    def train(self, round: int, payload: Payload) -> Payload:
        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            own = cross_entropy(self.model(x)[1], y)
            return own, own

        self.client.fit(round, loss)
        return {}


register_method("local", options=LocalOptions, server=LocalServer, client=LocalClient)
