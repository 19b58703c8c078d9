"""FedMRL: a small shared model and the client's own model share one nested representation.

Yi et al., "Federated Model Heterogeneous Matryoshka Representation Learning", NeurIPS 2024.

With r the own features (512), a those of the auxiliary model (128) and P a private linear projector (640 -> 512):

    q = P([a; r]),    u = auxiliary head(q[:, :128]),    o = own head(q),    loss  CE(o, y) + CE(u, y)

The auxiliary model is received anew in each round; the server takes the uniform mean. Predictions are o, with the
server's auxiliary model and the client's own extractor, projector and head.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedl2g.learning.client import Client
from fedl2g.methods.base import Trained, Traits
from fedl2g.methods.options import AuxiliaryOptions
from fedl2g.methods.registry import register_method
from fedl2g.methods.shared_network import AuxiliaryClient, SharedNetworkServer
from fedl2g.payload import Payload


class FedMRLOptions(AuxiliaryOptions):
    """A client's model and a small shared one are joined in one nested representation."""

    name: str = "fedmrl"
    sub_feature_dim: int = Field(
        128, ge=1, le=512, description="Width of the auxiliary model's features: the inner part of the representation."
    )


class FedMRLServer(SharedNetworkServer[FedMRLOptions]):
    """Averages the auxiliary models."""

    def initial_network(self) -> nn.Module:
        return self.task.build_auxiliary(self.options.sub_feature_dim)


class FedMRLClient(AuxiliaryClient[FedMRLOptions]):
    """Trains its network, its projector and the auxiliary model, and sends the auxiliary model."""

    def __init__(self, options: FedMRLOptions, client: Client) -> None:
        super().__init__(options, client, feature_dim=options.sub_feature_dim)
        width = client.task.feature_dim
        with client.start_stream("private"):
            projector = nn.Linear(options.sub_feature_dim + width, width)
        self.projector = self.state["projector"] = projector.to(client.device, client.task.dtype)

    def train(self, round: int, payload: Payload) -> Trained:
        self.shared.load(payload)

        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            q = self._representation(x)
            own = cross_entropy(self.model.head(q), y)
            u = self.auxiliary.head(q[:, : self.options.sub_feature_dim])
            return own + cross_entropy(u, y), own

        networks = (self.model, self.projector, self.auxiliary)
        log = self.client.fit(round, loss, [self.client.optimizer(*networks)], networks=networks)
        return Trained(self.shared.pack(), log)

    def receive(self, payload: Payload) -> None:
        self.shared.load(payload)  # safe to overwrite: `train` loads its own broadcast
        self.auxiliary.eval()

    def predict(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model.head(self._representation(x))
        return logits

    def _representation(self, x: Tensor) -> Tensor:
        own, auxiliary = self.model.extractor(x), self.auxiliary.extractor(x)
        representation: Tensor = self.projector(torch.cat([auxiliary, own], dim=1))
        return representation


register_method(
    "fedmrl",
    options=FedMRLOptions,
    server=FedMRLServer,
    client=FedMRLClient,
    traits=Traits(
        uploads="network",
        auxiliary_network=True,
        predicts_with_broadcast=True,
        communication_note="FedMRL's auxiliary network has narrow features and a narrow head, so it is smaller than "
        "FML's.",
        advice="Use it where a small network may be shared with the server, at about twice the cost of local training. "
        "A wider auxiliary representation shares more and costs more.",
    ),
)
