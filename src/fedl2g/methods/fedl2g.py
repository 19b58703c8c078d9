"""FedL2G: the server learns one guiding vector per class such that guidance improves each client's own task.

Zhang et al., "Adaptive Guidance for Local Training in Heterogeneous Federated Learning", ICML 2025.

Client loss on the study set, once the warm-up rounds are over:

    CE(f(x), y) + MSE(z, G[y]),     z = f(x) (logits, `fedl2g-l`) or h(x) (features, `fedl2g-f`)

Then one pseudo-step on a study batch, the quiz loss q after it, and the upload pi = dq/dG without its zero rows
(`fedl2g.learning.guidance`). Server: G <- G - server_lr * clip(mean over the clients that sent a row, class by class).

Beyond the paper, all off by default:

    quiz = rotating          the quiz is drawn anew each round from all samples, and all of them train
    guide_weight = w         CE + w * MSE; "adaptive": w <- clip(w * exp(adaptive_rate * alignment), 0, 4) after a round
                             of training, from 1; private to the client
    server_step = rms        G[y] <- G[y] - rms_step * pi[y] / RMS(pi[y]) for every class y that was sent
    preset = recommended     quiz = rotating, guide_weight = 0.1, server_step = rms and, in logit space, guide_init =
                             zeros (docs/when-it-helps.md)
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from fedl2g import rng
from fedl2g.errors import SettingError
from fedl2g.learning.client import Client, Task
from fedl2g.learning.guidance import Guidance, Space, guidance
from fedl2g.learning.profiling import GUIDING, watch
from fedl2g.learning.training import SampleView, TrainingLog, at_least_two
from fedl2g.methods.base import ClientHalf, Combined, Options, ServerHalf, Trained, Traits
from fedl2g.methods.registry import register_method
from fedl2g.payload import Payload, Specification, class_vector_spec, class_vectors

CLIP = 100.0  # bounds the client's gradient norm, and the norm of the whole guiding gradient
MAX_WEIGHT = 4.0  # of an adaptive weight

_SERVER_LR = "Server learning rate of the guiding vectors; 0 keeps them at their initial values."
_RMS_STEP = "RMS of a guiding vector's move in a round, with server_step rms."


class FedL2GOptions(Options):
    """FedL2G's options; the two variants differ in the guided space and the server's learning rate."""

    space: ClassVar[Space]
    recommended: ClassVar[dict[str, Any]] = {"quiz": "rotating", "guide_weight": 0.1, "server_step": "rms"}

    preset: Literal["paper", "recommended"] = Field(
        "paper",
        description="The options that are not given: the paper's, or those that do least harm on small clients (quiz "
        "rotating, guide_weight 0.1, server_step rms; for fedl2g-l also guide_init zeros).",
    )
    server_lr: float = Field(ge=0, description=_SERVER_LR)
    warmup_rounds: int = Field(50, ge=0, description="Initial rounds in which only the guiding vectors are trained.")
    quiz: Literal["fixed", "first", "rotating"] | None = Field(
        None,
        description="The quiz set. fixed: drawn once, never trained on; first: the first training samples, likewise; "
        "rotating: drawn anew each round from all training samples, which then all train. Absent: by the protocol, "
        "fixed with ours.",
    )
    quiz_size: int | None = Field(
        None,
        ge=1,
        description="Samples of each client's quiz set; absent: one batch, and at most half of its training samples. "
        "A client with no more training samples than a given number is refused.",
    )
    guide_weight: Annotated[float, Field(ge=0)] | Literal["adaptive"] = Field(
        1.0,
        description="Weight of the pull towards the guiding vectors: a number, or adaptive (each client's own, from 1, "
        "raised or lowered each round by the alignment of the pull with its quiz gradient).",
    )
    adaptive_rate: float = Field(0.5, gt=0, description="How fast an adaptive guide_weight follows the alignment.")
    server_step: Literal["sgd", "rms"] = Field(
        "sgd",
        description="The step of the guiding vectors: server_lr times the gradient, or rms_step per entry in the "
        "gradient's direction whatever its size (server_lr is then not used).",
    )
    rms_step: float = Field(gt=0, description=_RMS_STEP)
    guide_init: Literal["normal", "zeros", "orthogonal"] = Field(
        "normal", description="Initial guiding vectors: N(0,1) entries, zeros, or orthogonal directions."
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("preset") == "recommended":
            return {**cls.recommended, **given}
        return given

    @model_validator(mode="after")
    def _frozen_guide_takes_no_rms_step(self) -> FedL2GOptions:
        if self.server_step == "rms" and self.server_lr == 0:
            raise ValueError("server_lr 0 keeps the guiding vectors, server_step rms moves them; choose one of the two")
        return self

    def width(self, task: Task) -> int:
        """M: the width of a guiding vector."""
        return task.classes if self.space == "logits" else task.feature_dim


class LogitOptions(FedL2GOptions):
    """FedL2G in logit space: guiding vectors as wide as the number of classes."""

    space = "logits"
    # Zero logits prefer no class; random ones contradict the labels until they have been learnt.
    recommended: ClassVar[dict[str, Any]] = {**FedL2GOptions.recommended, "guide_init": "zeros"}
    name: str = "fedl2g-l"
    server_lr: float = Field(0.1, ge=0, description=_SERVER_LR)
    rms_step: float = Field(0.3, gt=0, description=_RMS_STEP)


class FeatureOptions(FedL2GOptions):
    """FedL2G in feature space: guiding vectors as wide as the shared features."""

    space = "features"
    name: str = "fedl2g-f"
    server_lr: float = Field(100.0, ge=0, description=_SERVER_LR)
    rms_step: float = Field(0.1, gt=0, description=_RMS_STEP)


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
        if self.options.server_step == "rms":
            move = _scaled_rows(rows, self.options.rms_step)
            self.guide[ids] -= move
            self.step = _norm(move)
        else:
            rows = rows * min(1.0, CLIP / (_norm(rows) + 1e-6))
            self.guide[ids] -= self.options.server_lr * rows
            self.step = self.options.server_lr * _norm(rows)
        self.distance += self.step

    def metrics(self) -> dict[str, float]:
        return {"guide_step": self.step, "guide_distance": float(self.distance)}


def _norm(rows: Tensor) -> float:
    return float(torch.linalg.vector_norm(rows, dtype=torch.float64))


def _scaled_rows(rows: Tensor, size: float) -> Tensor:
    """Rows of the same directions whose root mean square is `size`; zero rows stay zero."""
    exact = rows.double()  # no overflow, and no underflow of tiny gradients
    rms = torch.linalg.vector_norm(exact, dim=1, keepdim=True) / math.sqrt(rows.shape[1])
    return torch.where(rms > 0, size * exact / rms, 0.0).to(rows.dtype)


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


class GuideWeight(nn.Module):
    """A client's private weight of the pull: raised while the pull helps its quiz, lowered while it harms it."""

    value: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("value", torch.ones((), dtype=torch.float64))

    def adapt(self, rate: float, alignment: float) -> None:
        """Multiply the weight by exp(rate * alignment), within 0 and its limit."""
        self.value.mul_(math.exp(rate * alignment)).clamp_(0.0, MAX_WEIGHT)


class FedL2GClient(ClientHalf[FedL2GOptions]):
    """Trains with guidance on its study set, then sends the guiding gradient."""

    def __init__(self, options: FedL2GOptions, client: Client) -> None:
        super().__init__(options, client)
        self.quiz = options.quiz or client.task.quiz
        self._quiz_size = quiz_size(options, client)
        self.quiz_set, self.study_set = self._split()
        self._adaptive = GuideWeight() if options.guide_weight == "adaptive" else None
        if self._adaptive is not None:
            self.state["guide_weight"] = self._adaptive

    def expected(self) -> Specification:
        task = self.client.task
        return class_vector_spec(task.classes, self.options.width(task), task.dtype)

    @property
    def guide_weight(self) -> float:
        """The weight of the pull in this round."""
        if self._adaptive is not None:
            return self._adaptive.value.item()
        return float(self.options.guide_weight)

    def train(self, round: int, payload: Payload) -> Trained:
        guide, weight = self._guide(payload), self.guide_weight

        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            features, logits = self.model(x)
            z = features if self.options.space == "features" else logits
            own = cross_entropy(logits, y)
            return torch.add(own, mse_loss(z, guide.index_select(0, y)), alpha=weight), own

        log = TrainingLog()
        if trains := round > self.options.warmup_rounds:
            data = self.client.train_set if self.quiz == "rotating" else self.study_set
            log = self.client.fit(round, loss, [self.client.optimizer(clip=CLIP)], data=data)
        found = self._guidance(round, guide, weight)
        if trains and self._adaptive is not None:  # never in the warm-up: it must leave the client as it was
            self._adaptive.adapt(self.options.adaptive_rate, found.alignment)
        sent = found.rows.any(dim=1)  # a zero row would count in the mean of its class
        log.metrics["alignment"] = found.alignment
        return Trained(class_vectors(found.ids[sent], found.rows[sent]), log)

    def study_batch(self, round: int) -> SampleView:
        """The study batch of a round's pseudo-step, drawn from the study set; a rotating quiz is drawn first."""
        task = self.client.task
        if self.quiz == "rotating":
            self.quiz_set, self.study_set = self._split(round)
        generator = rng.torch_stream(task.seed, "study_batch", self.client.id, round)
        return self.study_set.subset(torch.randperm(len(self.study_set), generator=generator)[: task.batch_size])

    def _split(self, *ids: int) -> tuple[SampleView, SampleView]:
        """The quiz set and the study set, drawn from a stream of their own or in the order of the train set."""
        train_set = self.client.train_set
        generator = rng.torch_stream(self.client.task.seed, "quiz", self.client.id, *ids)
        samples = len(train_set)
        order = torch.arange(samples) if self.quiz == "first" else torch.randperm(samples, generator=generator)
        quiz, study = order[: self._quiz_size], order[self._quiz_size :]
        return train_set.subset(quiz), train_set.subset(study.sort().values)

    def _guidance(self, round: int, guide: Tensor, weight: float) -> Guidance:
        watch.start()
        task = self.client.task
        chosen = self.study_batch(round)
        study = chosen.batch(torch.arange(len(chosen)))
        quiz = self.quiz_set.batch(torch.arange(len(self.quiz_set)))
        self.model.train()
        with self.client.stream("guidance", round):
            found = guidance(
                self.model,
                at_least_two(*study),
                at_least_two(*quiz),
                guide,
                lr=task.client_lr,
                space=self.options.space,
                weight=weight,
            )
        watch.lap(GUIDING)
        return found

    def _guide(self, payload: Payload) -> Tensor:
        task = self.client.task
        guide = torch.zeros(task.classes, self.options.width(task), dtype=task.dtype)
        guide[payload["ids"]] = payload["rows"]
        return guide.to(self.client.device)


def quiz_size(options: FedL2GOptions, client: Client) -> int:
    """The size of a client's quiz set: as given, or one batch and at most half of its training samples."""
    samples = len(client.train_set)
    if samples < 2:
        raise SettingError(
            f"partition: client {client.id} has {samples} training sample; FedL2G expects at least 2, one for the "
            "study set and one for the quiz set; choose fewer clients or another partition"
        )
    if options.quiz_size is None:
        return min(client.task.batch_size, samples // 2)
    if options.quiz_size >= samples:
        raise SettingError(
            f"method.quiz_size: {options.quiz_size} leaves nothing to study of the {samples} training samples of "
            f"client {client.id}; expected at most {samples - 1}; choose a smaller number, or leave it out (one batch, "
            "at most half of a client's samples)"
        )
    return options.quiz_size


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
            metrics={"alignment": (-1.0, 1.0)},
            idle_without_steps=True,
            communication_note="FedL2G's uploads are small: a study batch of B samples has at most B classes, so at "
            "most B rows of the guiding gradient are not zero, and only those are sent.",
            advice="Use the defaults to reproduce the paper, and preset=recommended on your own data, above all with "
            "few samples per client (docs/when-it-helps.md). While the recorded alignment stays clearly below zero the "
            "pull works against the clients: lower guide_weight, let it be adaptive, or train locally.",
        ),
    )
