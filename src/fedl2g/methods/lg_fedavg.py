"""LG-FedAvg: each client keeps its own extractor, all share one head.

Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global Representations", NeurIPS 2019
workshop on federated learning.

Each round starts from the server's head and trains extractor and head alike with

    CE(f(x), y)

The head goes up; the server takes the mean of the heads, weighted by the sizes of the clients' train sets. Predictions
are those of the client's extractor with the server's head.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy

from fedl2g.methods.base import Options, Reply
from fedl2g.methods.registry import register_method
from fedl2g.methods.shared_network import SharedHeadClient, SharedHeadServer
from fedl2g.payload import Payload


class LGFedAvgOptions(Options):
    """Own extractors, one head averaged on the server."""

    name: str = "lg-fedavg"


class LGFedAvgServer(SharedHeadServer[LGFedAvgOptions]):
    """Averages the heads."""

    def aggregate(self, round: int, replies: list[Reply]) -> None:
        sizes = [reply.report.samples for reply in replies]
        self.shared.load(self.combine(round, replies, self.shared.pack(), sizes))


class LGFedAvgClient(SharedHeadClient[LGFedAvgOptions]):
    """Trains its network from the server's head on, and sends the head."""

    def train(self, round: int, payload: Payload) -> Payload:
        self.shared.load(payload)

        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            own = cross_entropy(self.model(x)[1], y)
            return own, own

        self.client.fit(round, loss)
        return self.shared.pack()


register_method("lg-fedavg", options=LGFedAvgOptions, server=LGFedAvgServer, client=LGFedAvgClient, shares_head=True)
