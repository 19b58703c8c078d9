"""The paper's theorem on a small problem: the measured average squared gradient norm and its bound.

A client's objective in round t is F_t(w) = CE(w) + MSE(z(w), G_t[y]) on its study set. Let F_t be L1-smooth, let a
stochastic gradient be unbiased with variance at most sigma^2, let a round make E steps of rate eta_c < 2 / L1. The
descent lemma gives, for each step and in expectation,

    F_t(w_next) <= F_t(w) - eta_c (1 - L1 eta_c / 2) |grad F_t(w)|^2 + L1 eta_c^2 sigma^2 / 2.

Between rounds the guiding vectors move, and the objective with them: |G_{t+1}[y] - G_t[y]| <= eta_s R, where R bounds
the rows of the guiding gradient, and |z - (G_t[y] + G_{t+1}[y]) / 2| <= R', so that

    F_{t+1}(w) - F_t(w) = (1/M) mean <G_t[y] - G_{t+1}[y], 2 z - G_t[y] - G_{t+1}[y]> <= 2 eta_s R R' / M.

Summing over T rounds, with F >= 0, gives the bound:

    1/(T E) sum |grad F_t|^2  <=  2 F_1(w_0) / (T E eta_c (2 - L1 eta_c))        falls as 1/T
                                  + L1 eta_c sigma^2 / (2 - L1 eta_c)             noise of the batches
                                  + 4 eta_s R R' / (M E eta_c (2 - L1 eta_c))     drift of the guidance

The constants are estimated from the run itself: L1 is the largest of the Hessian's spectral norms (power iteration) and
of the secant slopes along the run, sigma^2 the largest variance of a batch gradient (from the gradients of all single
samples), R and R' the largest observed values. Nothing is fitted. The network is smooth (tanh), everything is float64.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy, mse_loss

from fedl2g import rng
from fedl2g.files import write_text
from fedl2g.learning.client import Task
from fedl2g.learning.guidance import guiding_gradient
from fedl2g.methods.base import Combined
from fedl2g.methods.fedl2g import FedL2GServer, LogitOptions
from fedl2g.payload import Payload, class_vectors, mean_by_class
from fedl2g.process import one_thread

CLASSES, INPUTS, BATCH = 3, 6, 10


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


@dataclass
class Convergence:
    """The measurements on client 0, and the bound with the constants of the run."""

    problem: dict[str, Any]
    constants: dict[str, float]
    rounds: list[int]
    measured: list[float]  # average over the first T rounds
    bound: list[float]
    floor: float  # the part of the bound that does not fall with T
    parts: dict[str, float] = field(default_factory=dict)


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
        self.names = [name for name, _ in self.network.named_parameters()]

    def parameters(self) -> list[Tensor]:
        return list(self.network.parameters())

    def objective(self, guide: Tensor, chosen: Tensor | slice = slice(None)) -> Tensor:
        logits = self.network(self.x[chosen])[1]
        return cross_entropy(logits, self.y[chosen]) + mse_loss(logits, guide[self.y[chosen]])

    def gradient(self, guide: Tensor, chosen: Tensor | slice = slice(None), create_graph: bool = False) -> Tensor:
        parts = torch.autograd.grad(self.objective(guide, chosen), self.parameters(), create_graph=create_graph)
        return torch.cat([part.flatten() for part in parts])

    def move(self, step: Tensor) -> None:
        with torch.no_grad():
            start = 0
            for p in self.parameters():
                p += step[start : start + p.numel()].view_as(p)
                start += p.numel()

    def batch_variance(self, guide: Tensor) -> float:
        """sigma^2: the variance of the gradient of a batch drawn with replacement."""
        values = {name: p.detach() for name, p in self.network.named_parameters()}

        def loss(at: dict[str, Tensor], x: Tensor, y: Tensor, target: Tensor) -> Tensor:
            logits: Tensor = functional_call(self.network, at, (x[None],))[1][0]
            return cross_entropy(logits, y) + mse_loss(logits, target)

        single = vmap(grad(loss), in_dims=(None, 0, 0, 0))(values, self.x, self.y, guide[self.y])
        rows = torch.cat([single[name].flatten(1) for name in self.names], dim=1)
        return float((rows - rows.mean(0)).square().sum(1).mean() / BATCH)

    def hessian_norm(self, guide: Tensor, iterations: int = 20) -> float:
        """The spectral norm of the objective's Hessian, by power iteration."""
        g = self.gradient(guide, create_graph=True)
        vector = torch.randn(g.shape, generator=rng.torch_stream(self.problem.seed, "power"), dtype=g.dtype)
        norm = 0.0
        for _ in range(iterations):
            vector = vector / vector.norm()
            parts = torch.autograd.grad(g, self.parameters(), grad_outputs=vector, retain_graph=True)
            vector = torch.cat([part.flatten() for part in parts])
            norm = float(vector.norm())
        return norm

    def guiding_gradient(self, guide: Tensor, chosen: Tensor) -> Payload:
        study = (self.x[chosen], self.y[chosen])
        ids, rows = guiding_gradient(self.network, study, self.quiz, guide, lr=self.problem.client_lr, space="logits")
        return class_vectors(ids, rows)


def measure(problem: Problem | None = None) -> Convergence:
    """Run FedL2G-l on the small problem and measure client 0."""
    with one_thread():
        return _measure(problem or Problem())


def _measure(problem: Problem) -> Convergence:
    options = LogitOptions(server_lr=problem.server_lr, warmup_rounds=0)
    task = Task(CLASSES, (1, 1, INPUTS), problem.seed, problem.rounds, "none", BATCH, dtype=torch.float64)
    server = FedL2GServer(options, task)
    clients = [_Client(id, problem) for id in range(problem.clients)]
    first = clients[0]
    start = first.objective(server.guide).item()
    smoothness = variance = row_norm = distance = 0.0
    total, measured = 0.0, []
    for round in range(1, problem.rounds + 1):
        guide = server.guide.clone()
        careful = round <= 20 or round % 20 == 0  # the costly constants hardly change later
        for client in clients:
            before = first.gradient(guide) if client is first else None
            for step in range(problem.steps):
                stream = rng.torch_stream(problem.seed, "convergence_batch", client.id, round, step)
                chosen = torch.randint(problem.samples, (BATCH,), generator=stream)
                move = -problem.client_lr * client.gradient(guide, chosen)
                if before is None:
                    client.move(move)
                    continue
                total += float(before.square().sum())
                if careful and step == 0:
                    variance = max(variance, client.batch_variance(guide))
                    smoothness = max(smoothness, client.hessian_norm(guide))
                client.move(move)
                after = client.gradient(guide)
                smoothness = max(smoothness, float((after - before).norm() / move.norm()))
                before = after
        measured.append(total / (round * problem.steps))
        streams = [rng.torch_stream(problem.seed, "convergence_study", c.id, round) for c in clients]
        studies = [torch.randperm(problem.samples, generator=stream)[:BATCH] for stream in streams]
        ids, rows = mean_by_class(c.guiding_gradient(guide, s) for c, s in zip(clients, studies, strict=True))
        server.update(round, Combined({"ids": ids, "rows": rows}))
        moved = (server.guide - guide).norm(dim=1)
        row_norm = max(row_norm, float(moved.max()) / problem.server_lr if problem.server_lr else 0.0)
        middle = (guide + server.guide) / 2
        with torch.no_grad():
            distance = max(distance, float((first.network(first.x)[1] - middle[first.y]).norm(dim=1).max()))
    return _with_bound(problem, start, smoothness, variance, row_norm, distance, measured)


def _with_bound(
    problem: Problem,
    start: float,
    smoothness: float,
    variance: float,
    row_norm: float,
    distance: float,
    measured: list[float],
) -> Convergence:
    eta, steps = problem.client_lr, problem.steps
    slack = 2 - smoothness * eta
    if slack <= 0:
        raise ValueError(f"eta_c: {eta} is too large; the bound needs eta_c < 2 / L1 = {2 / smoothness:.3g}")
    falling = 2 * start / (steps * eta * slack)
    noise = smoothness * eta * variance / slack
    drift = 4 * problem.server_lr * row_norm * distance / (CLASSES * steps * eta * slack)
    rounds = list(range(1, problem.rounds + 1))
    return Convergence(
        problem=asdict(problem),
        constants={
            "L1": smoothness,
            "sigma": variance**0.5,
            "R": row_norm,
            "R'": distance,
            "eta_c": eta,
            "eta_s": problem.server_lr,
            "E": float(steps),
            "F_1(w_0)": start,
            "M": float(CLASSES),
        },
        rounds=rounds,
        measured=measured,
        bound=[falling / t + noise + drift for t in rounds],
        floor=noise + drift,
        parts={"falling": falling, "noise": noise, "drift": drift},
    )


def run_convergence(path: Path, *, smoke: bool = False) -> Path:
    """Measure and write the result as JSON."""
    found = measure(Problem(rounds=60) if smoke else Problem())
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(asdict(found), indent=1))
    return path
