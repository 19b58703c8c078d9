"""The accountant: a bound of the exact mechanism, noise solved for a target."""

from __future__ import annotations

import math
from typing import Any

from scipy.stats import norm

from fedl2g.experiment.policies import Privacy
from fedl2g.privacy.accounting import epsilon_spent, solve_noise_multiplier
from fedl2g.privacy.mechanism import Mechanism


def _mechanism(**settings: Any) -> Mechanism:
    return Mechanism(Privacy(clip=1.0, **settings), clients=10, participation=0.2, rounds=200, seed=5)


def test_the_accountant_bounds_the_exact_gaussian_mechanism() -> None:
    """Without sampling, t rounds are one Gaussian mechanism of noise z / sqrt(t), whose delta is known exactly."""
    for z, steps in ((2.0, 1), (10.0, 50), (4.0, 3)):
        epsilon, mu = epsilon_spent(z, 1.0, steps, 1e-5), math.sqrt(steps) / z
        exact_delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        assert exact_delta <= 1e-5  # the bound holds,
        tighter = 0.8 * epsilon
        assert norm.cdf(mu / 2 - tighter / mu) - math.exp(tighter) * norm.cdf(-mu / 2 - tighter / mu) > 1e-5  # closely


def test_sampling_amplifies_and_rounds_add_up() -> None:
    assert epsilon_spent(1.0, 0.1, 100, 1e-5) < epsilon_spent(1.0, 1.0, 100, 1e-5)
    spent = [epsilon_spent(1.0, 0.1, steps, 1e-5) for steps in (0, 1, 10, 100)]
    assert spent == sorted(spent)
    assert spent[0] == 0


def test_noise_is_solved_for_a_target() -> None:
    z = solve_noise_multiplier(4.0, 1e-5, 0.2, 200)
    assert 3.9 < epsilon_spent(z, 0.2, 200, 1e-5) <= 4.0
    mechanism = _mechanism(epsilon=4.0)
    assert mechanism.noise_multiplier == z
    assert mechanism.epsilon(200, 60) <= 4.0
    on_clients = _mechanism(epsilon=4.0, noise="client")
    assert on_clients.noise_multiplier > z  # the server knows who takes part: no amplification
    assert on_clients.epsilon(200, 200) <= 4.0


def test_what_counts_as_a_step() -> None:
    """On the server every round, sampled; on a client each of its own participations, not sampled."""
    server, client = (_mechanism(noise_multiplier=1.5, noise=noise) for noise in ("server", "client"))
    assert server.epsilon(30, 7) == epsilon_spent(1.5, 0.2, 30, 1e-5)
    assert client.epsilon(30, 7) == epsilon_spent(1.5, 1.0, 7, 1e-5)
