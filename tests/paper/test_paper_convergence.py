"""The measured convergence: the run is FedL2G's, the constants are what they claim, both theorems hold."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch.nn.functional import cross_entropy, mse_loss

from fedl2g.cli import app
from fedl2g.errors import RunError, SettingError
from fedl2g.learning.client import Task
from fedl2g.methods.fedl2g import FedL2GServer, LogitOptions
from fedl2g.paper.convergence import Convergence, Problem, _Client, measure, read_convergence
from fedl2g.paper.theorem import LEFT_OUT
from fedl2g.process import one_thread
from forging import sealed_again


@cache
def found(server_lr: float) -> Convergence:
    return measure(Problem(rounds=120 if server_lr == 0.1 else 30, server_lr=server_lr))


@pytest.fixture
def _single_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.mark.usefixtures("_single_thread")
def test_one_round_against_a_loop_written_from_the_paper() -> None:
    """Two clients, E = 2, double backward: losses at three moments, squared norms, Delta, row and distance."""
    problem = Problem(clients=2, samples=24, rounds=1, steps=2, client_lr=0.1, server_lr=3.0)
    once = measure(problem)

    task = Task(3, (1, 1, 6), problem.seed, 1, "none", 10, dtype=torch.float64)
    guide = FedL2GServer(LogitOptions(server_lr=3.0, warmup_rounds=0), task).guide.clone().requires_grad_()
    clients = [_Client(id, problem) for id in range(2)]  # its data, network and draws; nothing else of it is used

    def total(weights: list[torch.Tensor], x: torch.Tensor, y: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        logits = logits_of(weights, x)
        return cross_entropy(logits, y) + mse_loss(logits, at[y])

    def value(weights: list[torch.Tensor], client: _Client, at: torch.Tensor) -> float:
        return total(weights, client.x, client.y, at).item()

    def logits_of(weights: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ weights[0].T + weights[1]) @ weights[2].T + weights[3]

    gradients = []
    for client in clients:
        weights = [p.detach().clone().requires_grad_() for p in client.parameters()]
        start, squared = value(weights, client, guide), 0.0
        for step in range(2):
            whole = torch.autograd.grad(total(weights, client.x, client.y, guide), weights)
            squared += sum(float(part.square().sum()) for part in whole)
            drawn = client.batch(1, step)
            parts = torch.autograd.grad(total(weights, client.x[drawn], client.y[drawn], guide), weights)
            weights = [(w - 0.1 * part).detach().requires_grad_() for w, part in zip(weights, parts, strict=True)]
        drawn = client.study(1)
        parts = torch.autograd.grad(total(weights, client.x[drawn], client.y[drawn], guide), weights, create_graph=True)
        quiz = cross_entropy(
            logits_of([w - 0.1 * part for w, part in zip(weights, parts, strict=True)], client.quiz[0]), client.quiz[1]
        )
        gradients.append(torch.autograd.grad(quiz, guide)[0])
        if client.id == 0:
            own = (weights, start, squared, value(weights, client, guide))
    sent = torch.stack([(gradient != 0).any(1) for gradient in gradients]).sum(0).clamp(min=1)
    after = guide.detach() - 3.0 * sum(gradients) / sent[:, None]

    weights, start, squared, trained = own
    end = value(weights, clients[0], after)
    (measured,) = once.rounds
    assert (measured.start, measured.squared_norms) == pytest.approx((start, squared), rel=1e-11)
    assert (measured.trained, measured.end) == pytest.approx((trained, end), rel=1e-11)
    assert once.constants.delta == pytest.approx(start - min(start, trained, end), rel=1e-11)
    assert once.row == pytest.approx((guide - after).norm(dim=1).max().item() / 3, rel=1e-9)
    off = logits_of(weights, clients[0].x) - ((guide + after) / 2)[clients[0].y]
    assert once.distance == pytest.approx(off.norm(dim=1).max().item(), rel=1e-11)


@pytest.mark.usefixtures("_single_thread")
def test_the_constants_at_a_point_against_slow_references() -> None:
    problem = Problem(samples=24)
    client = _Client(1, problem)
    guide = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    single = [client.gradient(guide, torch.tensor([i])) for i in range(problem.samples)]
    torch.testing.assert_close(client.sample_gradients(guide), torch.stack(single), rtol=0, atol=1e-13)
    own = [
        torch.cat([g.flatten() for g in torch.autograd.grad(cross_entropy(logits[None], y[None]), client.parameters())])
        for logits, y in ((client.network(x[None])[1][0], y) for x, y in zip(client.x, client.y, strict=True))
    ]
    torch.testing.assert_close(client.sample_gradients(guide, guided=False), torch.stack(own), rtol=0, atol=1e-13)
    g = client.gradient(guide, create_graph=True)
    rows = [torch.cat([p.flatten() for p in torch.autograd.grad(v, client.parameters(), retain_graph=True)]) for v in g]
    exact = float(torch.linalg.eigvalsh(torch.stack(rows)).abs().max())
    assert client.hessian_norm(guide, iterations=100) == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("server_lr", [pytest.param(0.1, marks=pytest.mark.slow), 10.0])
def test_both_theorems_hold_with_either_bound(server_lr: float) -> None:
    run = found(server_lr)
    assert list(run.bounds()) == list(run.drifts()) == ["the paper's bound", "a bound for the squared loss"]
    for drift in run.drifts().values():
        assert min(run.slacks(drift)) > 0
    for bound in run.bounds().values():
        assert all(average < limit for average, limit in zip(run.averages(), bound, strict=True))
    # The server's step alone: the bound for the squared loss is a bound in every round, whatever the weights.
    assert all(r.end - r.trained <= run.drift for r in run.rounds)


def test_the_averages_are_those_of_the_first_rounds() -> None:
    norms = [r.squared_norms for r in found(0.1).rounds]
    assert found(0.1).averages()[4] == pytest.approx(sum(norms[:5]) / 5)


def test_the_measured_average_falls_about_as_one_over_t_until_the_floor() -> None:
    averages = found(0.1).averages()
    floor = sum(r.squared_norms for r in found(0.1).rounds[80:]) / 40
    excess = {t: averages[t - 1] - floor for t in (5, 10, 20, 40)}
    assert min(excess.values()) > 0
    slope = math.log(excess[40] / excess[5]) / math.log(8)
    assert -1.25 < slope < -0.7


def test_a_rate_without_a_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="eta_c < 2 / L1"):
        measure(Problem(rounds=2, client_lr=50.0))


def fedl2g(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["paper", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("convergence")


@pytest.fixture(scope="module")
def printed(out: Path) -> str:
    place = ("--scale", "smoke", "--out", str(out))
    return fedl2g("run", "convergence", *place, "--epsilon", "0.5", "--epsilon", "3", "--quiet")


def test_the_command_prints_and_stores_both_theorems(out: Path, printed: str) -> None:
    study = read_convergence(out / "smoke" / "convergence.json")
    assert [run.problem.server_lr for run in study.runs] == [0.1, 10.0]
    assert study.epsilons == (0.5, 3.0)
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed.splitlines() if line.startswith("|")]
    assert ["0.1", "the paper's bound", "20", "20"] in [line[:4] for line in cells]
    assert ["10", "a bound for the squared loss", "20", "20"] in [line[:4] for line in cells]
    c = study.runs[0].constants
    limit = 2 * 0.5 / (c.smoothness * (5 * c.sigma**2 + 0.5) + 4 * 0.1 * c.own_gradient * 5 * c.gradient)
    assert ["0.1", "0.5", f"{limit:.4g}"] in [line[:3] for line in cells]
    assert LEFT_OUT in printed

    rows = list(csv.DictReader((out / "smoke" / "convergence.csv").open()))
    assert [(float(r["server_lr"]), int(r["round"])) for r in rows] == [(s, t) for s in (0.1, 10) for t in range(1, 21)]
    last = rows[19]
    run = study.runs[0]
    assert float(last["average"]) == pytest.approx(sum(r.squared_norms for r in run.rounds) / 20, rel=1e-5)
    slack = float(last["paper_1"]) - float(last["end"])
    assert slack == pytest.approx(run.slacks(run.constants.drift)[19], abs=1e-4)
    assert float(last["squared_loss_2"]) == pytest.approx(run.bounds()["a bound for the squared loss"][19], rel=1e-5)


@pytest.mark.usefixtures("printed")
def test_figure_and_page_say_what_lemma_2_leaves_out(out: Path) -> None:
    text = fedl2g("show", "convergence", "--scale", "smoke", "--out", str(out))
    folder = out / "smoke"
    assert LEFT_OUT in text
    assert LEFT_OUT in (folder / "convergence.md").read_text()
    assert all((folder / f"convergence{suffix}").stat().st_size for suffix in (".png", ".pdf", ".svg", ".csv"))


def test_epsilon_belongs_to_convergence_and_a_dry_run_measures_nothing(tmp_path: Path) -> None:
    place = ["--scale", "smoke", "--out", str(tmp_path)]
    with pytest.raises(SettingError, match="--epsilon: has no meaning for 'data'"):
        fedl2g("run", "data", *place, "--epsilon", "1")
    assert "2 runs of 20 rounds" in fedl2g("run", "convergence", *place, "--dry-run")
    assert not list(tmp_path.rglob("convergence.json"))


@pytest.mark.usefixtures("printed")
def test_a_damaged_result_is_named(out: Path, tmp_path: Path) -> None:
    (tmp_path / "smoke").mkdir()
    values = json.loads((out / "smoke" / "convergence.json").read_text())
    del values["runs"][0]["constants"]["sigma"]
    sealed_again(tmp_path / "smoke" / "convergence.json", values)
    with pytest.raises(RunError, match=r"'sigma'.*run `fedl2g paper run convergence --scale smoke` first"):
        fedl2g("show", "convergence", "--scale", "smoke", "--out", str(tmp_path))
