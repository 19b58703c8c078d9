"""FedProto: clients exchange the mean features of each class, and pull their features towards the global mean.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022.

With P[y] the server's prototype of the sample's class (from the second round on; a class without one adds nothing):

    CE(f(x), y) + weight * MSE(h(x), P[y]),     MSE the mean over batch and dimensions

Upload: the mean of h(x) per class over all batches of the round, accumulated during training. The server takes the
uniform mean over the clients that sent a class. The prediction is the class of the nearest prototype; the accuracy of
the classifier head is also reported, as "head".
"""

from __future__ import annotations

from pydantic import Field

from fedl2g.methods.base import Options, Trained, Traits
from fedl2g.methods.class_means import ClassMeans, ClassMeanServer
from fedl2g.methods.prototypes import PrototypeClient
from fedl2g.methods.registry import register_method
from fedl2g.payload import Payload


class FedProtoOptions(Options):
    """Clients exchange the mean features of each class and pull their own towards them."""

    name: str = "fedproto"
    weight: float = Field(
        10.0, ge=0, description="Weight of the distance to the prototypes relative to the cross entropy."
    )


class FedProtoServer(ClassMeanServer[FedProtoOptions]):
    """Averages the prototypes per class."""

    @property
    def width(self) -> int:
        return self.task.feature_dim


class FedProtoClient(PrototypeClient[FedProtoOptions]):
    """Trains its features towards the prototypes, and sends the means of its own."""

    def train(self, round: int, payload: Payload) -> Trained:
        means = ClassMeans(self.client, self.client.task.feature_dim)
        log = self.client.fit(round, self.pulled_loss(payload, self.options.weight, means))
        return Trained(means.pack(), log)


register_method(
    "fedproto",
    options=FedProtoOptions,
    server=FedProtoServer,
    client=FedProtoClient,
    traits=Traits(
        uploads="class vectors",
        vectors="features",
        predicts_with_broadcast=True,
        advice="Use it for long runs with similar networks: it predicts by the nearest prototype, which different "
        "networks agree on late. Compare the accuracy called `head` before you discard it; lower `weight` if "
        "that falls, too.",
    ),
)
