"""The paper's convergence statement on a small problem: its constants, theorem 1 in every round, theorem 2.

FedL2G-l trains three clients with different small networks (tanh, so that the loss is smooth) in float64; client 0 is
measured. The formulas are in `fedl2g.paper.theorem`. Their constants are estimated from the run itself, nothing is
fitted: L1 is the largest of the Hessian's spectral norms and of the slopes of the gradient between two steps; sigma, R
and R' are the largest found from the gradients of all single samples; Delta is the first loss less the lowest seen. The
bound for the squared loss needs only L >= 0 and takes the first loss itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, mse_loss

from fedl2g import rng
from fedl2g.folder import MIB, Folder
from fedl2g.learning.client import Task
from fedl2g.learning.guidance import guiding_gradient
from fedl2g.methods.base import Combined
from fedl2g.methods.fedl2g import FedL2GServer, LogitOptions
from fedl2g.paper.estimates import batch_norm, batch_variance, hessian_norm, sample_gradients
from fedl2g.paper.theorem import Constants, squared_loss_drift, theorem_1, theorem_2
from fedl2g.payload import Payload, class_vectors, mean_by_class
from fedl2g.process import one_thread
from fedl2g.schema import image_schema
from fedl2g.seals import read_sealed, write_sealed

CLASSES, INPUTS, BATCH = 3, 6, 10
SERVER_RATES = (0.1, 10.0)
EPSILONS = (2.0, 1.0, 0.1)


@dataclass(frozen=True)
class Problem:
    """The small problem: clients with different networks and data, and the theorem's learning rates."""

    clients: int = 3
    samples: int = 60
    rounds: int = 400
    steps: int = 5  # E
    client_lr: float = 0.1  # eta_c
    server_lr: float = 0.1  # eta_s
    seed: int = 0


@dataclass(frozen=True)
class Round:
    """One round of client 0: its total loss at three moments, and sum_e |grad L^{tE+e}|^2."""

    start: float  # L^{tE+1/2}
    trained: float  # L^{(t+1)E}
    end: float  # L^{(t+1)E+1/2}: the same weights, the next guiding vectors
    squared_norms: float


@dataclass(frozen=True)
class Convergence:
    """The measurements of one run on client 0, and what the bounds say about them."""

    problem: Problem
    constants: Constants
    row: float  # the largest row of the guiding gradient
    distance: float  # the largest |z - (G_t[y] + G_{t+1}[y]) / 2|
    rounds: tuple[Round, ...]

    @property
    def drift(self) -> float:
        """The drift term of the bound for the squared loss."""
        return squared_loss_drift(self.problem.server_lr, self.row, self.distance, CLASSES)

    def drifts(self) -> dict[str, float]:
        """Each bound's name and drift term."""
        return {"the paper's bound": self.constants.drift, "a bound for the squared loss": self.drift}

    def slacks(self, drift: float) -> list[float]:
        """Theorem 1 in each round: the bound minus the measured loss; it holds where this is not negative."""
        return [theorem_1(r.start, [r.squared_norms], self.constants, drift) - r.end for r in self.rounds]

    def averages(self) -> list[float]:
        """The measured left side of theorem 2 after each round."""
        sums = accumulate(r.squared_norms for r in self.rounds)
        return [total / number for number, total in enumerate(sums, start=1)]

    def bounds(self) -> dict[str, list[float]]:
        """Each bound's name, and the right side of theorem 2 after each round."""
        numbers = range(1, len(self.rounds) + 1)
        first = self.rounds[0].start
        return {
            "the paper's bound": [theorem_2(t, self.constants) for t in numbers],
            "a bound for the squared loss": [theorem_2(t, self.constants, self.drift, first) for t in numbers],
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Convergence:
        """A measurement as `asdict` wrote it."""
        return cls(
            Problem(**values["problem"]),
            Constants(**values["constants"]),
            values["row"],
            values["distance"],
            tuple(Round(**one) for one in values["rounds"]),
        )


class _Network(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.extractor = nn.Sequential(nn.Linear(INPUTS, width), nn.Tanh())
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.extractor(x)
        return features, self.head(features)


class _Client:
    """A client of the small problem, with access to all properties of its objective."""

    def __init__(self, id: int, problem: Problem) -> None:
        self.id, self.problem = id, problem
        with rng.seeded(problem.seed, "convergence", id):
            self.network = _Network(6 + 2 * id).double()
            centres = torch.randn(CLASSES, INPUTS, dtype=torch.float64)
            self.y = torch.arange(problem.samples) % CLASSES
            self.x = centres[self.y] + 0.6 * torch.randn(problem.samples, INPUTS, dtype=torch.float64)
            quiz_y = torch.arange(BATCH) % CLASSES
            self.quiz = (centres[quiz_y] + 0.6 * torch.randn(BATCH, INPUTS, dtype=torch.float64), quiz_y)

    def parameters(self) -> list[Tensor]:
        return list(self.network.parameters())

    def objective(self, guide: Tensor, chosen: Tensor | slice = slice(None)) -> Tensor:
        logits = self.network(self.x[chosen])[1]
        return cross_entropy(logits, self.y[chosen]) + mse_loss(logits, guide[self.y[chosen]])

    def loss(self, guide: Tensor) -> float:
        with torch.no_grad():
            return self.objective(guide).item()

    def gradient(self, guide: Tensor, chosen: Tensor | slice = slice(None), create_graph: bool = False) -> Tensor:
        parts = torch.autograd.grad(self.objective(guide, chosen), self.parameters(), create_graph=create_graph)
        return torch.cat([part.flatten() for part in parts])

    def move(self, step: Tensor) -> None:
        with torch.no_grad():
            torch.nn.utils.vector_to_parameters(
                torch.nn.utils.parameters_to_vector(self.parameters()) + step, self.parameters()
            )

    def sample_gradients(self, guide: Tensor, *, guided: bool = True) -> Tensor:
        """The gradient of every sample: of L, or without guidance of L' = CE."""

        def loss(at: dict[str, Tensor], x: Tensor, y: Tensor, target: Tensor) -> Tensor:
            logits: Tensor = functional_call(self.network, at, (x[None],))[1][0]
            own = cross_entropy(logits, y)
            return own + mse_loss(logits, target) if guided else own

        values = {name: p.detach() for name, p in self.network.named_parameters()}
        return sample_gradients(loss, values, (self.x, self.y, guide[self.y]))

    def hessian_norm(self, guide: Tensor, iterations: int = 20) -> float:
        gradient = self.gradient(guide, create_graph=True)
        stream = rng.torch_stream(self.problem.seed, "power")
        start = torch.randn(gradient.shape, generator=stream, dtype=gradient.dtype)
        return hessian_norm(gradient, self.parameters(), start, iterations)

    def guiding_gradient(self, guide: Tensor, chosen: Tensor) -> Payload:
        study = (self.x[chosen], self.y[chosen])
        ids, rows = guiding_gradient(self.network, study, self.quiz, guide, lr=self.problem.client_lr, space="logits")
        return class_vectors(ids, rows)

    def batch(self, round: int, step: int) -> Tensor:
        stream = rng.torch_stream(self.problem.seed, "convergence_batch", self.id, round, step)
        return torch.randint(self.problem.samples, (BATCH,), generator=stream)

    def study(self, round: int) -> Tensor:
        stream = rng.torch_stream(self.problem.seed, "convergence_study", self.id, round)
        return torch.randperm(self.problem.samples, generator=stream)[:BATCH]


class _Largest:
    """The largest values seen on a run, from which the constants are made."""

    def __init__(self) -> None:
        self.smoothness = self.variance = self.gradient = self.own_gradient = self.row = self.distance = 0.0

    def look(self, client: _Client, guide: Tensor) -> None:
        """At the client's weights: L1, sigma^2, R, R'."""
        rows = client.sample_gradients(guide)
        own = client.sample_gradients(guide, guided=False)
        self.variance = max(self.variance, batch_variance(rows, BATCH))
        self.gradient = max(self.gradient, batch_norm(rows, BATCH))
        self.own_gradient = max(self.own_gradient, batch_norm(own, BATCH))
        self.smoothness = max(self.smoothness, client.hessian_norm(guide))

    def look_at_step(self, client: _Client, before: Tensor, after: Tensor) -> None:
        """At a step of the server."""
        moved = float((before - after).norm(dim=1).max())
        rate = client.problem.server_lr
        self.row = max(self.row, moved / rate if rate else 0.0)
        with torch.no_grad():
            distances = client.network(client.x)[1] - ((before + after) / 2)[client.y]
        self.distance = max(self.distance, float(distances.norm(dim=1).max()))


def measure(problem: Problem | None = None) -> Convergence:
    """Run FedL2G-l on the small problem and measure client 0."""
    with one_thread():
        return _measure(problem or Problem())


def _measure(problem: Problem) -> Convergence:
    options = LogitOptions(server_lr=problem.server_lr, warmup_rounds=0)
    task = Task(CLASSES, image_schema(1, 1, INPUTS), problem.seed, problem.rounds, "none", BATCH, dtype=torch.float64)
    server = FedL2GServer(options, task)
    clients = [_Client(id, problem) for id in range(problem.clients)]
    first, *others = clients
    largest, rounds = _Largest(), []
    for round in range(1, problem.rounds + 1):
        guide = server.guide.clone()
        if round <= 20 or round % 20 == 0:  # the costly constants hardly change later
            largest.look(first, guide)
        start = first.loss(guide)
        squared_norms = _train_measured(first, guide, round, largest)
        trained = first.loss(guide)
        for client in others:
            for step in range(problem.steps):
                client.move(-problem.client_lr * client.gradient(guide, client.batch(round, step)))
        ids, rows = mean_by_class(client.guiding_gradient(guide, client.study(round)) for client in clients)
        server.update(round, Combined({"ids": ids, "rows": rows}))
        largest.look_at_step(first, guide, server.guide)
        rounds.append(Round(start, trained, first.loss(server.guide), squared_norms))
    lowest = min(min(r.start, r.trained, r.end) for r in rounds)
    constants = Constants(
        smoothness=largest.smoothness,
        sigma=largest.variance**0.5,
        gradient=largest.gradient,
        own_gradient=largest.own_gradient,
        delta=rounds[0].start - lowest,
        steps=problem.steps,
        client_lr=problem.client_lr,
        server_lr=problem.server_lr,
    )
    theorem_2(1, constants)  # ValueError if eta_c is too large for any bound
    return Convergence(problem, constants, largest.row, largest.distance, tuple(rounds))


def _train_measured(client: _Client, guide: Tensor, round: int, largest: _Largest) -> float:
    """A round's local training; returns sum_e |grad L|^2 and looks at the slope of the gradient between two steps."""
    total = 0.0
    before = client.gradient(guide)
    for step in range(client.problem.steps):
        total += float(before.square().sum())
        move = -client.problem.client_lr * client.gradient(guide, client.batch(round, step))
        client.move(move)
        after = client.gradient(guide)
        largest.smoothness = max(largest.smoothness, float((after - before).norm() / move.norm()))
        before = after
    return total


@dataclass(frozen=True)
class ConvergenceStudy:
    """What `fedl2g paper run convergence` measured: a run for each server rate, and the epsilons asked for."""

    runs: tuple[Convergence, ...]
    epsilons: tuple[float, ...]


def problem_at(scale: str) -> Problem:
    """The problem at a scale of the paper's experiments: smoke is shorter, full and small are the same."""
    return Problem(rounds=20) if scale == "smoke" else Problem()


def run_convergence(path: Path, problem: Problem, epsilons: Iterable[float] = ()) -> ConvergenceStudy:
    """Measure with each server rate and write the result as JSON."""
    runs = tuple(measure(replace(problem, server_lr=rate)) for rate in SERVER_RATES)
    study = ConvergenceStudy(runs, tuple(epsilons) or EPSILONS)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_sealed(Folder(path.parent), path.name, asdict(study))
    return study


_LIMIT = 64 * MIB


def read_convergence(path: Path) -> ConvergenceStudy:
    """A study as `run_convergence` wrote it; OSError, ValueError, TypeError or KeyError if there is none."""
    values = read_sealed(
        Folder(path.parent), path.name, limit=_LIMIT, remedy="`fedl2g paper run convergence` writes it again"
    )
    return ConvergenceStudy(tuple(map(Convergence.from_json, values["runs"])), tuple(values["epsilons"]))
