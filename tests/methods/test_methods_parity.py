"""FedL2G as published, against an independent and slow version of it: a whole federation, number by number.

The reference is written from the paper's algorithm 1: plain loops, float64, a second-order graph for dq/dG. It calls no
loss, optimizer, mean or training loop of the package, and shares with it the initial weights, the initial guide and the
names of the random streams.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedl2g.engines.inline import InlineEngine
from fedl2g.experiment import Experiment
from fedl2g.federation import Federation, Observer
from fedl2g.methods.base import Reply
from fedl2g.methods.fedl2g import FedL2GServer
from fedl2g.methods.registry import get_method
from fedl2g.payload import Payload
from fedl2g.rng import torch_stream
from fedl2g.round.record import RoundRecord
from fedl2g.setup import Setup, prepare

CLIENTS, BATCH, CLIENT_LR, CLIP, SEED = 2, 10, 0.01, 100.0, 3
ROUNDS, WARM_UP = (1, 2, 3), 1
SERVER_LR = {"fedl2g-l": 0.1, "fedl2g-f": 100.0}
Batch = tuple[Tensor, Tensor]


class RecordingEngine(InlineEngine):
    """The inline engine, which also keeps what the clients of the last round sent."""

    sent: dict[int, Payload]

    def train(self, round: int, clients: Sequence[int], payload: Payload, check: Any) -> Iterator[Reply]:
        self.sent = {}
        for reply in super().train(round, clients, payload, check):
            self.sent[reply.client] = reply.payload
            yield reply


def experiment_of(method: str, protocol: str) -> Experiment:
    """Two clients that share some of ten classes: a plain network, and one with BatchNorm."""
    return Experiment(
        method={"name": method, "warmup_rounds": WARM_UP},
        protocol=protocol,
        samples=110,
        image_size=32,
        partition="dirichlet:1",
        models="cnn4,resnet4",
        clients=CLIENTS,
        rounds=len(ROUNDS),
        seed=SEED,
        precision="float64",
    )


class Reference:
    """The clients and the server of algorithm 1."""

    def __init__(self, setup: Setup, models: list[nn.Module], guide: Tensor, method: str, protocol: str) -> None:
        self.protocol = protocol
        self.space = 0 if method == "fedl2g-f" else 1  # of (features, logits)
        self.server_lr = SERVER_LR[method]
        self.models = models
        self.guide = guide
        self.classes, self.width = guide.shape
        self.data = [self._samples(setup, client) for client in range(CLIENTS)]

    @staticmethod
    def _samples(setup: Setup, client: int) -> Batch:
        chosen = setup.partition.train[client]
        images = setup.dataset.inputs[chosen].astype(np.float64) / 127.5 - 1.0
        return torch.from_numpy(images), torch.from_numpy(setup.dataset.labels[chosen])

    def round(self, number: int) -> list[dict[int, Tensor]]:
        """One round; what each client sends, by class."""
        sent = []
        for client in range(CLIENTS):
            quiz, study = self._quiz_and_study(client)
            if number > WARM_UP:
                self._train(client, number, study)
            sent.append(self._guiding_gradient(client, number, study, quiz))
        self._update(sent)
        return sent

    def _quiz_and_study(self, client: int) -> tuple[list[int], list[int]]:
        """Positions in the client's train set: with the paper's protocol the first batch, and the rest."""
        count = len(self.data[client][1])
        if self.protocol == "paper":
            return list(range(BATCH)), list(range(BATCH, count))
        order = torch.randperm(count, generator=torch_stream(SEED, "quiz", client)).tolist()
        return order[:BATCH], sorted(order[BATCH:])

    def _batch(self, client: int, positions: list[int]) -> Batch:
        x, y = self.data[client]
        return torch.stack([x[p] for p in positions]), torch.stack([y[p] for p in positions])

    def _objective(self, outputs: tuple[Tensor, Tensor], y: Tensor, guide: Tensor) -> Tensor:
        """CE(f(x), y) + MSE(z, G[y])."""
        total = torch.zeros((), dtype=torch.float64)
        for sample, label in enumerate(y.tolist()):
            z = outputs[self.space][sample]
            pull = torch.zeros((), dtype=torch.float64)
            for dimension in range(0, self.width, 64):  # in pieces: one by one would take minutes
                piece = slice(dimension, dimension + 64)
                pull = pull + ((z[piece] - guide[label][piece]) ** 2).sum()
            total = total + pull / self.width
        return self._cross_entropy(outputs[1], y) + total / len(y)

    @staticmethod
    def _cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for row, label in zip(logits, y.tolist(), strict=True):
            shifted = row - row.max().detach()
            total = total - (shifted[label] - torch.log(torch.exp(shifted).sum()))
        return total / len(y)

    def _train(self, client: int, number: int, study: list[int]) -> None:
        """One epoch over the study set without the incomplete last batch, the gradient's norm clipped."""
        model = self.models[client].train()
        order = study
        if self.protocol == "ours":
            stream = torch_stream(SEED, "order", client, number, 0)
            order = [study[p] for p in torch.randperm(len(study), generator=stream).tolist()]
        for step in range(len(order) // BATCH):
            x, y = self._batch(client, order[step * BATCH : (step + 1) * BATCH])
            parameters = list(model.parameters())
            gradients = torch.autograd.grad(self._objective(model(x), y, self.guide), parameters)
            norm = sum(float((gradient**2).sum()) for gradient in gradients) ** 0.5
            share = min(1.0, CLIP / (norm + 1e-6))
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter -= CLIENT_LR * share * gradient

    def _guiding_gradient(self, client: int, number: int, study: list[int], quiz: list[int]) -> dict[int, Tensor]:
        """dq/dG through the pseudo-step; the model stays as it is."""
        model = copy.deepcopy(self.models[client]).train()  # BatchNorm's statistics of the pseudo-step are thrown away
        stream = torch_stream(SEED, "study_batch", client, number)
        chosen = [study[p] for p in torch.randperm(len(study), generator=stream).tolist()[:BATCH]]
        guide = self.guide.clone().requires_grad_()
        parameters = dict(model.named_parameters())
        x, y = self._batch(client, chosen)
        objective = self._objective(model(x), y, guide)
        gradients = torch.autograd.grad(objective, list(parameters.values()), create_graph=True)
        moved = {n: p - CLIENT_LR * g for (n, p), g in zip(parameters.items(), gradients, strict=True)}
        quiz_x, quiz_y = self._batch(client, quiz)
        quiz_loss = self._cross_entropy(functional_call(model, moved, (quiz_x,))[1], quiz_y)
        (gradient,) = torch.autograd.grad(quiz_loss, guide)
        return {label: gradient[label] for label in range(self.classes) if float(gradient[label].abs().sum()) > 0}

    def _update(self, sent: list[dict[int, Tensor]]) -> None:
        """The mean over the clients that sent a class, clipped as a whole; classes nobody sent stay."""
        means = {}
        for label in range(self.classes):
            rows = [upload[label] for upload in sent if label in upload]
            if rows:
                means[label] = sum(rows[1:], rows[0]) / len(rows)
        norm = sum(float((row**2).sum()) for row in means.values()) ** 0.5
        share = min(1.0, CLIP / (norm + 1e-6))
        for label, row in means.items():
            self.guide[label] = self.guide[label] - self.server_lr * share * row


def agree(found: Tensor, expected: Tensor) -> None:
    """Equal to 1e-9 of the largest value."""
    assert found.dtype == torch.float64
    assert found.shape == expected.shape
    size = float(expected.abs().max())
    assert float((found - expected).abs().max()) <= 1e-9 * size


class Compared(Observer):
    """Plays each round with the reference too, and compares everything."""

    def __init__(self, reference: Reference, starts: list[nn.Module]) -> None:
        self.reference = reference
        self.starts = [model.state_dict() for model in starts]
        self.shared = 0  # rows that are a mean of two

    def on_round(self, federation: Federation, record: RoundRecord) -> None:
        if record.round == 0:
            return
        engine, server = federation.engine, federation.server
        assert isinstance(engine, RecordingEngine)
        assert isinstance(server, FedL2GServer)
        expected = self.reference.round(record.round)
        for client, by_class in enumerate(expected):
            sent = engine.sent[client]
            assert sent["ids"].tolist() == sorted(by_class)
            agree(sent["rows"], torch.stack([by_class[label] for label in sorted(by_class)]))
            state = engine.host.half(client).model.state_dict()
            for name, tensor in self.reference.models[client].state_dict().items():
                agree(state[name].double(), tensor.double())
            moved = any(not torch.equal(state[name], start) for name, start in self.starts[client].items())
            assert moved == (record.round > WARM_UP)
        agree(server.guide, self.reference.guide)
        self.shared += len(set(expected[0]) & set(expected[1]))


@pytest.mark.parametrize(("method", "protocol"), [("fedl2g-l", "ours"), ("fedl2g-f", "ours"), ("fedl2g-l", "paper")])
def test_a_federation_is_the_published_algorithm(method: str, protocol: str) -> None:
    """One warm-up and two training rounds: guiding gradients, guide, weights and BatchNorm's statistics."""
    setup = prepare(experiment_of(method, protocol))
    engine = RecordingEngine(setup)
    server = get_method(method).server(setup.experiment.method, setup.task)
    assert isinstance(server, FedL2GServer)
    guide = server.guide.clone()
    starts = [copy.deepcopy(engine.host.half(client).model) for client in range(CLIENTS)]
    compared = Compared(Reference(setup, copy.deepcopy(starts), guide.clone(), method, protocol), starts)
    federation = Federation(setup.experiment, server, engine, [compared])
    federation.run()
    assert federation.round == 3
    assert compared.shared
    assert float((server.guide - guide).abs().max()) > 1e-6
