"""FML: on each client, its own model and a small shared one teach each other.

Shen et al., "Federated Mutual Learning", arXiv:2006.16765, 2020.

With o the own model's logits and u those of the auxiliary model, which is received anew in each round:

    own loss        alpha * CE(o, y) + (1 - alpha) * KL(softmax u || softmax o)
    auxiliary loss  beta  * CE(u, y) + (1 - beta)  * KL(softmax o || softmax u)

KL is the mean over the batch at temperature 1; its first argument, the teacher, gets no gradient. The server takes the
uniform mean of the auxiliary models. Predictions are those of the client's own model.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedl2g.learning.losses import kl_divergence
from fedl2g.methods.base import Trained, Traits
from fedl2g.methods.options import AuxiliaryOptions
from fedl2g.methods.registry import register_method
from fedl2g.methods.shared_network import AuxiliaryClient, SharedNetworkServer
from fedl2g.payload import Payload

CLIP = 10.0  # bounds the gradient norm of each network separately


class FMLOptions(AuxiliaryOptions):
    """A client's model and a small shared one learn from each other's predictions."""

    name: str = "fml"
    alpha: float = Field(0.5, ge=0, le=1, description="Weight of the labels in the own loss; the rest is distillation.")
    beta: float = Field(
        0.5, ge=0, le=1, description="Weight of the labels in the auxiliary loss; the rest is distillation."
    )


class FMLClient(AuxiliaryClient[FMLOptions]):
    """Trains both networks and sends the auxiliary one."""

    def train(self, round: int, payload: Payload) -> Trained:
        self.shared.load(payload)
        alpha, beta = self.options.alpha, self.options.beta

        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            o, u = self.model(x)[1], self.auxiliary(x)[1]
            own = cross_entropy(o, y)
            own_loss = alpha * own + (1 - alpha) * kl_divergence(u, o)
            auxiliary_loss = beta * cross_entropy(u, y) + (1 - beta) * kl_divergence(o, u)
            return own_loss + auxiliary_loss, own  # teachers are detached: each network gets only its own loss

        optimizers = [self.client.optimizer(clip=CLIP), self.client.optimizer(self.auxiliary, clip=CLIP)]
        log = self.client.fit(round, loss, optimizers, networks=(self.model, self.auxiliary))
        return Trained(self.shared.pack(), log)


register_method(
    "fml",
    options=FMLOptions,
    server=SharedNetworkServer,
    client=FMLClient,
    traits=Traits(
        uploads="network",
        auxiliary_network=True,
        advice="Use it where a small network may be shared with the server and its larger uploads can be paid. "
        "A higher `alpha` keeps a client closer to its own data, a higher `beta` the shared network.",
    ),
)
