"""FedL2G: the server learns one guiding vector per class such that guidance improves each client's own task.

Zhang et al., "Adaptive Guidance for Local Training in Heterogeneous Federated Learning", ICML 2025.

Client loss on the study set, once the warm-up rounds are over:

    CE(f(x), y) + MSE(z, G[y]),     z = f(x) (logits, `fedl2g-l`) or h(x) (features, `fedl2g-f`)

Then one pseudo-step on a study batch, the quiz loss q after it, and the upload pi = dq/dG (`fedl2g.learning.guidance`).
Server: G <- G - server_lr * clip(mean over the clients that sent a row, class by class).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

from fedl2g import rng
from fedl2g.errors import SettingError
from fedl2g.learning.client import Client, Task
from fedl2g.learning.guidance import Space, guiding_gradient
from fedl2g.learning.profiling import GUIDING, watch
from fedl2g.learning.training import ImageView, TrainingLog, at_least_two
from fedl2g.methods.base import ClientHalf, Combined, Options, ServerHalf, Trained, Traits
from fedl2g.methods.registry import register_method
from fedl2g.payload import Payload, Specification, class_vector_spec, class_vectors

CLIP = 100.0  # bounds the client's gradient norm, and the norm of the whole guiding gradient


_SERVER_LR = "Server learning rate of the guiding vectors; 0 keeps them at their initial values."


class FedL2GOptions(Options):
    """FedL2G's options; the two variants differ in the guided space and the server's learning rate."""

    space: ClassVar[Space]

    server_lr: float = Field(ge=0, description=_SERVER_LR)
    warmup_rounds: int = Field(50, ge=0, description="Initial rounds in which only the guiding vectors are trained.")
    quiz_size: int = Field(10, ge=1, description="Samples each client holds out of its train set as its quiz set.")
    guide_init: Literal["normal", "zeros", "orthogonal"] = Field(
        "normal", description="Initial guiding vectors: N(0,1) entries, zeros, or orthogonal directions."
    )

    def width(self, task: Task) -> int:
        """M: the width of a guiding vector."""
        return task.classes if self.space == "logits" else task.feature_dim


class LogitOptions(FedL2GOptions):
    """FedL2G in logit space: guiding vectors as wide as the number of classes."""

    space = "logits"
    name: str = "fedl2g-l"
    server_lr: float = Field(0.1, ge=0, description=_SERVER_LR)


class FeatureOptions(FedL2GOptions):
    """FedL2G in feature space: guiding vectors as wide as the shared features."""

    space = "features"
    name: str = "fedl2g-f"
    server_lr: float = Field(100.0, ge=0, description=_SERVER_LR)


class FedL2GServer(ServerHalf[FedL2GOptions]):
    """Holds and updates the guiding vectors."""

    guide: Tensor
    distance: Tensor

    def __init__(self, options: FedL2GOptions, task: Task) -> None:
        super().__init__(options, task)
        self.register_buffer("guide", initial_guide(options, task))
        self.register_buffer("distance", torch.zeros((), dtype=torch.float64))
        self.step = 0.0  # how far the guiding vectors moved in this round

    def broadcast(self, round: int) -> Payload:
        self.step = 0.0  # the round may end without an update
        return class_vectors(torch.arange(len(self.guide)), self.guide.clone())  # `update` works in place

    def expected(self) -> Specification:
        return class_vector_spec(self.task.classes, self.options.width(self.task), self.task.dtype)

    def update(self, round: int, combined: Combined) -> None:
        ids, rows = combined.payload["ids"], combined.payload["rows"]
        rows = rows * min(1.0, CLIP / (_norm(rows) + 1e-6))
        self.guide[ids] -= self.options.server_lr * rows
        self.step = self.options.server_lr * _norm(rows)
        self.distance += self.step

    def metrics(self) -> dict[str, float]:
        return {"guide_step": self.step, "guide_distance": float(self.distance)}


def _norm(rows: Tensor) -> float:
    return float(torch.linalg.vector_norm(rows, dtype=torch.float64))


def initial_guide(options: FedL2GOptions, task: Task) -> Tensor:
    """The guiding vectors (C x M) before the first round."""
    guide = torch.zeros(task.classes, options.width(task), dtype=task.dtype)
    generator = rng.torch_stream(task.seed, "guide")
    if options.guide_init == "normal":
        guide.normal_(generator=generator)
    elif options.guide_init == "orthogonal":
        # Rows have the same expected squared norm as under "normal", so that the two differ in direction only.
        torch.nn.init.orthogonal_(guide, gain=guide.shape[1] ** 0.5, generator=generator)
    return guide


class FedL2GClient(ClientHalf[FedL2GOptions]):
    """Trains with guidance on its study set, then sends the guiding gradient."""

    def __init__(self, options: FedL2GOptions, client: Client) -> None:
        super().__init__(options, client)
        samples = len(client.train_set)
        if samples < 2:
            raise SettingError(
                f"partition: client {client.id} has {samples} training sample; FedL2G expects at least 2, one for the "
                "study set and one for the quiz set; choose fewer clients or another partition"
            )
        order = torch.randperm(samples, generator=rng.torch_stream(client.task.seed, "quiz", client.id))
        quiz_size = min(options.quiz_size, samples - 1)
        self.quiz_set = client.train_set.subset(order[:quiz_size])
        self.study_set = client.train_set.subset(order[quiz_size:].sort().values)

    def expected(self) -> Specification:
        task = self.client.task
        return class_vector_spec(task.classes, self.options.width(task), task.dtype)

    def train(self, round: int, payload: Payload) -> Trained:
        guide = self._guide(payload)

        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            features, logits = self.model(x)
            z = features if self.options.space == "features" else logits
            own = cross_entropy(logits, y)
            return own + mse_loss(z, guide.index_select(0, y)), own

        log = TrainingLog()
        if round > self.options.warmup_rounds:
            log = self.client.fit(round, loss, [self.client.optimizer(clip=CLIP)], data=self.study_set)
        return Trained(self._guiding_gradient(round, guide), log)

    def study_batch(self, round: int) -> ImageView:
        """The study batch of a round's pseudo-step, drawn from the study set."""
        task = self.client.task
        generator = rng.torch_stream(task.seed, "study_batch", self.client.id, round)
        return self.study_set.subset(torch.randperm(len(self.study_set), generator=generator)[: task.batch_size])

    def _guiding_gradient(self, round: int, guide: Tensor) -> Payload:
        watch.start()
        task = self.client.task
        chosen = self.study_batch(round)
        study = chosen.batch(torch.arange(len(chosen)))
        quiz = self.quiz_set.batch(torch.arange(len(self.quiz_set)))
        self.model.train()
        with self.client.stream("guidance", round):
            ids, rows = guiding_gradient(
                self.model,
                at_least_two(*study),
                at_least_two(*quiz),
                guide,
                lr=task.client_lr,
                space=self.options.space,
            )
        upload = class_vectors(ids, rows)
        watch.lap(GUIDING)
        return upload

    def _guide(self, payload: Payload) -> Tensor:
        task = self.client.task
        guide = torch.zeros(task.classes, self.options.width(task), dtype=task.dtype)
        guide[payload["ids"]] = payload["rows"]
        return guide.to(self.client.device)


for _options in (LogitOptions, FeatureOptions):
    register_method(
        _options.model_fields["name"].default,
        options=_options,
        server=FedL2GServer,
        client=FedL2GClient,
        traits=Traits(
            uploads="class vectors",
            vectors="guiding gradients",
            warm_up=True,
            extra_passes=3,
            idle_without_steps=True,
            communication_note="FedL2G's uploads are small: a study batch of B samples has at most B classes, so at "
            "most B rows of the guiding gradient are not zero, and only those are sent.",
        ),
    )
