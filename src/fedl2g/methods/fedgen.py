"""FedGen: the server learns to generate features of every class, on which clients train the head they share.

Zhu et al., "Data-Free Knowledge Distillation for Heterogeneous Federated Learning", ICML 2021, with the head as the
shared part and each client's own extractor.

Each round starts from the server's head and trains both extractor and head. Once the server has a generator g (from the
second round on), with classes y' drawn from the label counts of the last round's participants and e uniform noise:

    CE(f(x), y) + CE(head(g(e, y')), y')

Upload: the head and the number of train samples of each class. The server takes the mean of the heads, weighted by the
sizes of the train sets, and trains the generator by Adam with the same weights w_k:

    CE(sum over clients k of w_k * head_k(g(e, y')), y')

Adam's moments persist over rounds. Predictions are those of the client's extractor with the server's head. The
label counts of a client leave it: no privacy guarantee covers this method.
"""

from __future__ import annotations

from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, one_hot

from fedl2g import rng
from fedl2g.learning.client import Client, Task
from fedl2g.learning.moments import ADAM_SLOTS, Moments
from fedl2g.methods.base import Combined, Options, Reply, Trained, Traits
from fedl2g.methods.registry import register_method
from fedl2g.methods.shared_network import SharedHeadClient, SharedHeadServer, SharedNetwork
from fedl2g.payload import Payload, Specification, TensorSpec, check_payload, mean_payload

HEAD, GENERATOR, COUNTS = "head.", "generator.", "label_counts"


class FedGenOptions(Options):
    """One head for all clients, trained with features that a generator on the server makes for every class."""

    name: str = "fedgen"
    server_lr: float = Field(0.1, gt=0, description="Learning rate of Adam on the generator.")
    server_epochs: int = Field(100, ge=1, description="Steps of Adam on the generator in a round.")
    server_batch_size: int = Field(10, ge=2, description="Generated features in one of these steps.")
    noise_dim: int = Field(32, ge=1, description="Width of the generator's noise.")
    hidden_dim: int = Field(512, ge=1, description="Width of the generator's hidden layer.")


class Generator(nn.Module):
    """Generates features of a class from noise, which comes from the caller's random stream."""

    def __init__(self, options: FedGenOptions, task: Task) -> None:
        super().__init__()
        self.noise_dim, self.classes, self.dtype = options.noise_dim, task.classes, task.dtype
        # No bias: BatchNorm cancels it, and Adam would amplify the rounding errors of its gradient.
        self.hidden = nn.Linear(options.noise_dim + task.classes, options.hidden_dim, bias=False)
        self.norm = nn.BatchNorm1d(options.hidden_dim)
        self.features = nn.Linear(options.hidden_dim, task.feature_dim)
        self.to(task.dtype)

    def forward(self, inputs: Tensor) -> Tensor:
        features: Tensor = self.features(torch.relu(self.norm(self.hidden(inputs))))
        return features

    def inputs(self, labels: Tensor, stream: torch.Generator) -> Tensor:
        """The noise of each label, uniform in 0..1, and the label as a unit vector (on the CPU, as the stream is)."""
        noise = torch.rand(len(labels), self.noise_dim, generator=stream, dtype=self.dtype)
        return torch.cat([noise, one_hot(labels, self.classes).to(self.dtype)], dim=1)


def draw_labels(counts: Tensor, size: int, stream: torch.Generator) -> Tensor:
    """Classes drawn as often as they occur."""
    return torch.multinomial(counts.double(), size, replacement=True, generator=stream)


def _prefixed(prefix: str, payload: Payload) -> Payload:
    return {prefix + name: tensor for name, tensor in payload.items()}


def _part(prefix: str, payload: Payload) -> Payload:
    return {name.removeprefix(prefix): t for name, t in payload.items() if name.startswith(prefix)}


def _specification(shared: SharedNetwork, task: Task, generator: SharedNetwork | None = None) -> Specification:
    parts = {HEAD + name: spec for name, spec in shared.expected.items()}
    if generator is not None:
        parts |= {GENERATOR + name: spec for name, spec in generator.expected.items()}
    return {**parts, COUNTS: TensorSpec((task.classes,), torch.int64, least=0)}


class FedGenServer(SharedHeadServer[FedGenOptions]):
    """Averages the heads and trains the generator on them."""

    counts: Tensor

    def __init__(self, options: FedGenOptions, task: Task) -> None:
        super().__init__(options, task)
        with rng.seeded(task.seed, "generator"):
            self.generator = SharedNetwork(Generator(options, task))
        self.moments = Moments(self.generator.named_parameters(), ADAM_SLOTS)
        self.register_buffer("counts", torch.zeros(task.classes, dtype=torch.int64))

    def broadcast(self, round: int) -> Payload:
        generator = _prefixed(GENERATOR, self.generator.pack())
        return {**_prefixed(HEAD, self.shared.pack()), **generator, COUNTS: self.counts.clone()}

    def expected(self) -> Specification:
        return _specification(self.shared, self.task)

    def update(self, round: int, combined: Combined) -> None:
        heads = [_part(HEAD, reply.payload) for reply in combined.replies]
        weights = [reply.weight * reply.report.samples for reply in combined.replies]
        self.shared.load(mean_payload(heads, weights))
        self.counts.copy_(_total(combined.replies))
        if bool(self.counts.any()):
            self._train_generator(round, heads, [weight / sum(weights) for weight in weights])

    def _train_generator(self, round: int, heads: list[Payload], weights: list[float]) -> None:
        options, stream = self.options, rng.torch_stream(self.task.seed, "fedgen", round)
        head, generator = self.shared.network.eval(), cast(Generator, self.generator.network.train())
        optimizer = torch.optim.Adam(generator.parameters(), options.server_lr, fused=True)
        self.moments.attach(optimizer)
        for _ in range(options.server_epochs):
            labels = draw_labels(self.counts, options.server_batch_size, stream)
            z = generator(generator.inputs(labels, stream))
            logits = sum(w * functional_call(head, one, (z,)) for w, one in zip(weights, heads, strict=True))
            optimizer.zero_grad()
            cross_entropy(logits, labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        optimizer.zero_grad()


def _total(replies: tuple[Reply, ...]) -> Tensor:
    """The sum of the label counts; no client may overflow it."""
    limit = 2**62 // len(replies)
    return torch.stack([reply.payload[COUNTS].clamp(max=limit) for reply in replies]).sum(0)


class FedGenClient(SharedHeadClient[FedGenOptions]):
    """Trains its network starting from the server's head, on its samples and on generated features; sends the head."""

    def __init__(self, options: FedGenOptions, client: Client) -> None:
        super().__init__(options, client)
        with client.start_stream("generator"):  # its weights are those of the broadcast
            generator = Generator(options, client.task)
        self.generator = self.received["generator"] = generator.to(client.device)
        self._generator = SharedNetwork(self.generator)

    def expected(self) -> Specification:
        return _specification(self.shared, self.client.task, self._generator)

    def check(self, payload: Payload) -> None:
        self.check_head(_part(HEAD, payload))
        check_payload(payload, self.expected())

    def train(self, round: int, payload: Payload) -> Trained:
        self.shared.load(_part(HEAD, payload))
        self._generator.load(_part(GENERATOR, payload))
        self.generator.eval()
        task, counts = self.client.task, payload[COUNTS]
        generates = bool(counts.any())
        stream = rng.torch_stream(task.seed, "fedgen_client", self.client.id, round)

        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            own = cross_entropy(self.model(x)[1], y)
            if not generates:
                return own, own
            labels = draw_labels(counts, task.batch_size, stream)
            with torch.no_grad():
                z = self.generator(self.generator.inputs(labels, stream).to(self.client.device))
            return own + cross_entropy(self.model.head(z), labels.to(self.client.device)), own

        log = self.client.fit(round, loss)
        return Trained({**_prefixed(HEAD, self.shared.pack()), COUNTS: self._label_counts()}, log)

    def receive(self, payload: Payload) -> None:
        super().receive(_part(HEAD, payload))

    def _label_counts(self) -> Tensor:
        view = self.client.train_set
        return view.labels[view.indices].cpu().bincount(minlength=self.client.task.classes)


register_method(
    "fedgen",
    options=FedGenOptions,
    server=FedGenServer,
    client=FedGenClient,
    traits=Traits(
        uploads="network",
        raw_replies=True,
        shares_head=True,
        predicts_with_broadcast=True,
        communication_note="FedGen also sends how many samples of each class a client has.",
        advice="Use it where one head for all clients is wanted and the server may know how many samples of each class "
        "a client has. A lower `server_lr` or fewer `server_epochs` change the generator more slowly.",
    ),
)
