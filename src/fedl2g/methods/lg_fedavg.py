"""LG-FedAvg: each client keeps its own extractor, all share one head.

Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global Representations", NeurIPS 2019
workshop on federated learning.

Each round starts from the server's head and trains both extractor and head with

    CE(f(x), y)

Upload: the head. The server takes the mean of the heads, weighted by the sizes of the clients' train sets. Predictions
are those of the client's extractor with the server's head.
"""

from __future__ import annotations

from fedl2g.methods.base import Options, Trained, Traits
from fedl2g.methods.registry import register_method
from fedl2g.methods.shared_network import SharedHeadClient, SharedHeadServer
from fedl2g.payload import Payload


class LGFedAvgOptions(Options):
    """Every client has its own extractor; the server averages one head for all."""

    name: str = "lg-fedavg"


class LGFedAvgClient(SharedHeadClient[LGFedAvgOptions]):
    """Trains its network starting from the server's head, and sends the head."""

    def train(self, round: int, payload: Payload) -> Trained:
        self.shared.load(payload)
        log = self.client.fit(round, self.own_loss)
        return Trained(self.shared.pack(), log)


register_method(
    "lg-fedavg",
    options=LGFedAvgOptions,
    server=SharedHeadServer,
    client=LGFedAvgClient,
    traits=Traits(
        uploads="network",
        weighted_by_samples=True,
        shares_head=True,
        predicts_with_broadcast=True,
        advice="Use it where all networks have equal heads and the clients hold the same classes. "
        "It has no options; clients with few classes lose, because everyone predicts with the mean of all heads.",
    ),
)
