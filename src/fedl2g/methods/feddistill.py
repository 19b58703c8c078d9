"""FedDistill: clients exchange the mean logits of each class, and learn from the mean of all.

Jeong et al., "Communication-Efficient On-Device Machine Learning: Federated Distillation and Augmentation under Non-IID
Private Data", NeurIPS 2018 workshop on machine learning on the phone and other consumer devices.

With o the logits and t[y] the server's vector of the sample's class (from the second round on; a class without one adds
nothing to the mean over the batch):

    CE(o, y) + weight * l(o, t[y]),     l = cross entropy against softmax(t[y])  or  MSE

Upload: the mean of o per class over all batches of the round, accumulated during training. The server takes the
uniform mean over the clients that sent a class. Predictions are those of the client's own model.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax, softmax

from fedl2g.methods.base import ClientHalf, Options, Trained, Traits
from fedl2g.methods.class_means import ClassMeans, ClassMeanServer, ClassTargets
from fedl2g.methods.registry import register_method
from fedl2g.payload import Payload, Specification, class_vector_spec


class FedDistillOptions(Options):
    """Clients exchange the mean logits of each class and distil from them."""

    name: str = "feddistill"
    weight: float = Field(1.0, ge=0, description="Weight of the distillation loss relative to the cross entropy.")
    distance: Literal["cross_entropy", "mse"] = Field(
        "cross_entropy", description="Distance to the class's mean logits: cross entropy against their softmax, or MSE."
    )


class FedDistillServer(ClassMeanServer[FedDistillOptions]):
    """Averages the mean logits per class."""

    @property
    def width(self) -> int:
        return self.task.classes


class FedDistillClient(ClientHalf[FedDistillOptions]):
    """Learns from the mean logits of its samples' classes, and sends its own."""

    def expected(self) -> Specification:
        task = self.client.task
        return class_vector_spec(task.classes, task.classes, task.dtype)

    def train(self, round: int, payload: Payload) -> Trained:
        targets = ClassTargets(payload, self.client)
        means = ClassMeans(self.client, self.client.task.classes)

        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            logits = self.model(x)[1]
            means.add(logits, y)
            own = cross_entropy(logits, y)
            if not targets.exist:
                return own, own
            target, known = targets.vectors.index_select(0, y), targets.known.index_select(0, y)
            return own + self.options.weight * self._distance(logits, target, known), own

        log = self.client.fit(round, loss)
        return Trained(means.pack(), log)

    def _distance(self, logits: Tensor, target: Tensor, known: Tensor) -> Tensor:
        if self.options.distance == "mse":
            by_sample = (logits - target).square().mean(1)
        else:
            by_sample = -(softmax(target, dim=1) * log_softmax(logits, dim=1)).sum(1)
        return (by_sample * known).mean()


register_method(
    "feddistill",
    options=FedDistillOptions,
    server=FedDistillServer,
    client=FedDistillClient,
    traits=Traits(
        uploads="class vectors",
        vectors="logits",
        advice="The first method to try beside local training: it costs little and rarely harms "
        "(docs/when-it-helps.md). Lower `weight` where clients lose against local training; `distance=mse` compares the logits themselves.",
    ),
)
