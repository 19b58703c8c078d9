"""The theorem: the measured curve stays under the bound and falls about as 1/T until the noise floor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import pytest
import torch

from fedl2g.paper.convergence import Convergence, Problem, _Client, measure
from fedl2g.process import one_thread


@cache
def found() -> Convergence:
    return measure(Problem(rounds=240))


@pytest.fixture
def _single_thread() -> Iterator[None]:
    with one_thread():
        yield


def test_the_measured_curve_stays_under_the_bound() -> None:
    assert len(found().measured) == 240
    assert all(m < b for m, b in zip(found().measured, found().bound, strict=True))


def test_the_measured_curve_falls_about_as_one_over_t_until_the_floor() -> None:
    averages = found().measured
    single = [averages[0]] + [(t + 1) * averages[t] - t * averages[t - 1] for t in range(1, len(averages))]
    floor = sum(single[160:]) / 80
    excess = {t: averages[t - 1] - floor for t in (10, 20, 40, 80)}
    assert min(excess.values()) > 0
    slope = math.log(excess[80] / excess[10]) / math.log(8)
    assert -1.25 < slope < -0.7
    # And at the end it is at its floor: nearly all of what is left is the noise of the batches.
    assert floor < found().floor


def test_the_constants_are_those_of_the_problem() -> None:
    constants = found().constants
    assert constants["eta_c"] == 0.1
    assert constants["E"] == 5
    assert 0 < constants["L1"] < 2 / constants["eta_c"]
    assert all(constants[name] > 0 for name in ("sigma", "R", "R'"))


@pytest.mark.usefixtures("_single_thread")
def test_batch_variance_and_hessian_norm_against_slow_references() -> None:
    problem = Problem(samples=24)
    client = _Client(1, problem)
    guide = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mean = client.gradient(guide)
    deviations = [(client.gradient(guide, torch.tensor([i])) - mean).square().sum() for i in range(problem.samples)]
    assert client.batch_variance(guide) == pytest.approx(float(torch.stack(deviations).mean()) / 10)
    g = client.gradient(guide, create_graph=True)
    rows = [torch.cat([p.flatten() for p in torch.autograd.grad(v, client.parameters(), retain_graph=True)]) for v in g]
    exact = float(torch.linalg.eigvalsh(torch.stack(rows)).abs().max())
    assert client.hessian_norm(guide, iterations=100) == pytest.approx(exact, rel=1e-3)


def test_a_rate_without_a_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="eta_c < 2 / L1"):
        measure(Problem(rounds=2, client_lr=50.0))
