"""FedKD: mutual distillation with a small shared model that travels as low-rank factors.

Wu et al., "Communication-efficient federated learning via knowledge distillation", Nature Communications 13, 2022.

With o, h the own model's logits and features, u, a those of the auxiliary model (received anew in each round), W a
private linear map between the feature spaces and S = CE(o, y) + CE(u, y) treated as a constant:

    own loss        CE(o, y) + KL(softmax u || softmax o) / S + MSE(h, W a) / S
    auxiliary loss  CE(u, y) + KL(softmax o || softmax u) / S + MSE(h, W a) / S

The lower the two networks' losses, the stronger the distillation. In each network's loss the other network's output is
detached. W appears in both losses and is trained on their sum, by SGD at the client's learning rate. The gradient norms
of the two networks and of W are clipped separately.

In round t of T (the experiment's `rounds`, even if it stops early) both directions send every matrix as factors that
hold a share of its energy (`fedl2g.methods.low_rank`), which rises linearly from `energy_start` in the first round to
`energy_end` in the last. The server takes the uniform mean of the reconstructed models. Predictions are those of the
client's own model.
"""

from __future__ import annotations

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from fedl2g.errors import SettingError
from fedl2g.learning.client import Client, Task
from fedl2g.learning.losses import kl_divergence
from fedl2g.methods.base import Trained, Traits
from fedl2g.methods.fml import CLIP
from fedl2g.methods.low_rank import LOW_RANK, check_packed, compress, reconstruct
from fedl2g.methods.options import AuxiliaryOptions
from fedl2g.methods.registry import register_method
from fedl2g.methods.shared_network import AuxiliaryClient, SharedNetworkServer
from fedl2g.payload import Payload


class FedKDOptions(AuxiliaryOptions):
    """A client's model and a small shared one distil into each other; the shared one is sent as low-rank factors."""

    name: str = "fedkd"
    auxiliary_lr: float = Field(0.01, gt=0, description="Learning rate of the auxiliary model.")
    energy_start: float = Field(0.95, gt=0, le=1, description="Share of a matrix's energy sent in the first round.")
    energy_end: float = Field(0.98, gt=0, le=1, description="Share of a matrix's energy sent in the last round.")

    @model_validator(mode="after")
    def _check_energy(self) -> FedKDOptions:
        if self.energy_end < self.energy_start:
            raise SettingError(
                f"method.energy_end: {self.energy_end} is below method.energy_start ({self.energy_start}); "
                "expected at least energy_start"
            )
        return self

    def energy(self, round: int, task: Task) -> float:
        """The share of energy kept in both directions of a round."""
        assert task.rounds is not None, "the trait `uses_rounds`"
        progress = (round - 1) / max(1, task.rounds - 1)
        return self.energy_start + min(1.0, progress) * (self.energy_end - self.energy_start)


class FedKDServer(SharedNetworkServer[FedKDOptions]):
    """Averages the auxiliary models, which are exchanged as factors."""

    def broadcast(self, round: int) -> Payload:
        return compress(self.shared.pack(), self.options.energy(round, self.task))


class FedKDClient(AuxiliaryClient[FedKDOptions]):
    """Trains both networks and the map between their features, and sends the auxiliary model's factors."""

    def __init__(self, options: FedKDOptions, client: Client) -> None:
        super().__init__(options, client)
        width = client.task.feature_dim
        with client.start_stream("private"):
            feature_map = nn.Linear(width, width, bias=False)
        self.feature_map = self.state["feature_map"] = feature_map.to(client.device, client.task.dtype)

    def check(self, payload: Payload) -> None:
        check_packed(payload, self.expected())

    def train(self, round: int, payload: Payload) -> Trained:
        self.shared.load(reconstruct(payload, self.expected()))

        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            (h, o), (a, u) = self.model(x), self.auxiliary(x)
            own, auxiliary = cross_entropy(o, y), cross_entropy(u, y)
            # Both cross entropies can round to 0 once every sample is fitted: avoid dividing by 0.
            s = (own + auxiliary).detach().clamp(min=torch.finfo(own.dtype).eps)
            own_loss = own + (kl_divergence(u, o) + mse_loss(h, self.feature_map(a.detach()))) / s
            auxiliary_loss = auxiliary + (kl_divergence(o, u) + mse_loss(self.feature_map(a), h.detach())) / s
            return own_loss + auxiliary_loss, own

        optimizers = [
            self.client.optimizer(clip=CLIP),
            self.client.optimizer(self.auxiliary, clip=CLIP, lr=self.options.auxiliary_lr),
            self.client.optimizer(self.feature_map, clip=CLIP),  # 1 / S is unbounded
        ]
        log = self.client.fit(round, loss, optimizers, networks=(self.model, self.auxiliary, self.feature_map))
        return Trained(compress(self.shared.pack(), self.options.energy(round, self.client.task)), log)


register_method(
    "fedkd",
    options=FedKDOptions,
    server=FedKDServer,
    client=FedKDClient,
    traits=Traits(
        uploads="network",
        codec=LOW_RANK,
        auxiliary_network=True,
        uses_rounds=True,
        communication_note="FedKD's communication depends on the weights: the rank of each factor is the smallest that "
        "keeps the requested share of the energy; the mean over the run is shown.",
        advice="Use it where a small network may be shared but communication must shrink. "
        "Lower energies send less and lose more of the network; the number of rounds is part of the method.",
    ),
)
