"""The paper's convergence statement as formulas: against numbers by hand and against problems with known constants."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from fedl2g.paper.estimates import batch_norm, batch_variance, hessian_norm, sample_gradients
from fedl2g.paper.theorem import (
    Constants,
    largest_rate,
    lemma_1,
    rounds_needed,
    squared_loss_drift,
    theorem_1,
    theorem_2,
)

BY_HAND = Constants(smoothness=2, sigma=1, gradient=3, own_gradient=0.5, delta=4, steps=2, client_lr=0.1, server_lr=10)


def test_the_lemmas_and_theorem_1_by_hand() -> None:
    # (2 * 0.01 / 2 - 0.1) * (1 + 2) = -0.27; noise 2 * 2 * 0.01 * 1 / 2 = 0.02; drift 2 * 0.01 * 10 * 0.5 * 2 * 3 = 0.6
    assert lemma_1(5, [1, 2], BY_HAND) == pytest.approx(5 - 0.27 + 0.02)
    assert BY_HAND.drift == pytest.approx(0.6)
    assert theorem_1(5, [1, 2], BY_HAND) == pytest.approx(5 - 0.27 + 0.02 + 0.6)
    assert theorem_1(5, [1, 2], BY_HAND, drift=0.25) == pytest.approx(5)


def test_theorem_2_by_hand() -> None:
    # (2 * 4 / 10 + 2 * 2 * 0.01 * 1 + 4 * 0.01 * 10 * 0.5 * 2 * 3) / (0.2 - 2 * 0.01)
    assert theorem_2(10, BY_HAND) == pytest.approx((0.8 + 0.04 + 1.2) / 0.18)
    assert theorem_2(10, BY_HAND, drift=0.25, delta=1) == pytest.approx((0.2 + 0.04 + 0.5) / 0.18)
    with pytest.raises(ValueError, match="eta_c < 2 / L1 = 1"):
        theorem_2(10, replace(BY_HAND, client_lr=1.0))


def test_the_rate_and_the_rounds_that_an_epsilon_asks_for_by_hand() -> None:
    # 2 / (2 * (2 * 1 + 1) + 4 * 10 * 0.5 * 2 * 3); at half of it the gain is 2/126 - 126/126^2 = 1/126 and T > 8 * 126.
    assert largest_rate(1, BY_HAND) == pytest.approx(2 / 126)
    assert rounds_needed(1, BY_HAND, 1 / 126) == 1009
    assert rounds_needed(1, BY_HAND, 2.001 / 126) is None
    assert rounds_needed(1, BY_HAND, 1.999 / 126) is not None


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("epsilon", [0.03, 1.0, 7.0])
def test_theorem_2_is_below_epsilon_from_those_rounds_on_and_not_before(epsilon: float, share: float) -> None:
    rate = share * largest_rate(epsilon, BY_HAND)
    at_rate = replace(BY_HAND, client_lr=rate)
    needed = rounds_needed(epsilon, BY_HAND, rate)
    assert needed is not None
    assert theorem_2(needed, at_rate) < epsilon
    assert theorem_2(needed - 1, at_rate) >= epsilon * (1 - 1e-9)
    fewest = rounds_needed(epsilon, BY_HAND, largest_rate(epsilon, BY_HAND) / 2)
    assert fewest is not None
    assert fewest <= needed


# A quadratic problem: sample i has the loss (w - x_i)' A (w - x_i) / 2, so its gradient is A (w - x_i) and L1 = 5.
CURVATURE = torch.diag(torch.tensor([1.0, 5.0, 2.0], dtype=torch.float64))
SAMPLES = torch.tensor([[0.0, 1, 2], [1, -1, 0], [3, 0, 0.5], [-2, 0.25, 1]], dtype=torch.float64)
POINT = torch.tensor([0.5, -0.5, 2.0], dtype=torch.float64)


def _quadratic(at: dict[str, Tensor], x: Tensor) -> Tensor:
    off = at["w"] - x
    return off @ CURVATURE @ off / 2


def _whole(w: Tensor) -> float:
    return float(torch.stack([_quadratic({"w": w}, x) for x in SAMPLES]).mean())


def _batches(size: int) -> Tensor:
    """The gradient of every batch that can be drawn with replacement, all equally likely."""
    rows = (POINT - SAMPLES) @ CURVATURE
    return torch.stack([rows[list(chosen)].mean(0) for chosen in product(range(len(SAMPLES)), repeat=size)])


def test_gradients_of_single_samples_of_a_quadratic() -> None:
    found = sample_gradients(_quadratic, {"w": POINT}, (SAMPLES,))
    torch.testing.assert_close(found, (POINT - SAMPLES) @ CURVATURE, rtol=0, atol=1e-14)


def test_sigma_and_r_are_those_of_all_batches() -> None:
    rows = sample_gradients(_quadratic, {"w": POINT}, (SAMPLES,))
    batches = _batches(3)
    variance = float((batches - batches.mean(0)).square().sum(1).mean())
    assert batch_variance(rows, 3) == pytest.approx(variance, rel=1e-12)
    assert batch_norm(rows, 3) == pytest.approx(float(batches.square().sum(1).mean()) ** 0.5, rel=1e-12)
    assert batch_norm(rows, 3) >= float(batches.norm(dim=1).mean())  # the paper's R bounds E|omega|


def test_l1_of_a_quadratic_is_its_largest_curvature() -> None:
    w = POINT.clone().requires_grad_()
    gradient = CURVATURE @ (w - SAMPLES.mean(0))
    assert hessian_norm(gradient, [w], torch.ones(3, dtype=torch.float64), iterations=60) == pytest.approx(5, rel=1e-9)


def test_lemma_1_is_exact_where_the_curvature_is_the_same_in_every_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step with curvature a I: E L(w - eta omega) = L + (a eta^2 / 2 - eta) |grad L|^2 + a eta^2 sigma^2 / 2."""
    monkeypatch.setitem(globals(), "CURVATURE", 3 * torch.eye(3, dtype=torch.float64))
    eta, batches = 0.2, _batches(2)
    constants = replace(
        BY_HAND, smoothness=3, steps=1, client_lr=eta, sigma=batch_variance((POINT - SAMPLES) @ CURVATURE, 2) ** 0.5
    )
    expected = sum(_whole(POINT - eta * omega) for omega in batches) / len(batches)
    squared = float(batches.mean(0).square().sum())
    assert lemma_1(_whole(POINT), [squared], constants) == pytest.approx(expected, rel=1e-12)


def test_the_drift_of_the_squared_loss_is_bounded_and_the_bound_is_reached() -> None:
    stream = torch.Generator().manual_seed(0)
    z = torch.randn(40, 3, generator=stream, dtype=torch.float64)
    before, step = (torch.randn(3, generator=stream, dtype=torch.float64) for _ in range(2))
    rate = 0.7
    after = before - rate * step

    def loss(logits: Tensor, guide: Tensor) -> float:
        return float((logits - guide).square().mean())

    def bound(logits: Tensor) -> float:
        distance = float((logits - (before + after) / 2).norm(dim=1).max())
        return squared_loss_drift(rate, float(step.norm()), distance, 3)

    assert 0 < abs(loss(z, after) - loss(z, before)) < bound(z)
    opposite = ((before + after) / 2 + 2 * step)[None]  # the server moves straight away from this one
    assert loss(opposite, after) - loss(opposite, before) == pytest.approx(bound(opposite), rel=1e-12)
