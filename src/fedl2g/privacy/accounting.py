"""Privacy accounting: (epsilon, delta) of the Gaussian mechanism under Poisson sampling, by Opacus' RDP accountant."""

from __future__ import annotations

import functools
import warnings
from typing import Any

from fedl2g.errors import SettingError

# Renyi orders: Opacus' own, and larger ones for small epsilons.
_ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(12, 64), 80, 96, 128, 192, 256, 384, 512, 1024)


def epsilon_spent(noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    """Epsilon spent after this many steps; neighbouring federations differ in the presence of one client."""
    if steps == 0:
        return 0.0
    rdp = _rdp_of_one_step(noise_multiplier, sample_rate)
    with warnings.catch_warnings():  # it warns when the best order is the first or last; the bound is still valid
        warnings.simplefilter("ignore")
        epsilon, _ = _analysis().get_privacy_spent(orders=list(_ORDERS), rdp=[steps * r for r in rdp], delta=delta)
    return max(0.0, float(epsilon))


@functools.cache
def solve_noise_multiplier(epsilon: float, delta: float, sample_rate: float, steps: int) -> float:
    """The smallest noise multiplier (to 1 in 1000) with which this many steps spend at most this epsilon."""
    _analysis()
    from opacus.accountants.utils import get_noise_multiplier

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = get_noise_multiplier(
                target_epsilon=epsilon,
                target_delta=delta,
                sample_rate=sample_rate,
                steps=steps,
                accountant="rdp",
                epsilon_tolerance=min(0.01, epsilon / 1000),
                alphas=list(_ORDERS),
            )
    except ValueError as error:
        raise SettingError(
            f"privacy.epsilon: {epsilon} cannot be reached in {steps} rounds; choose a larger epsilon or fewer rounds"
        ) from error
    return float(found)


@functools.cache
def _rdp_of_one_step(noise_multiplier: float, sample_rate: float) -> tuple[float, ...]:
    found = _analysis().compute_rdp(q=sample_rate, noise_multiplier=noise_multiplier, steps=1, orders=list(_ORDERS))
    return tuple(float(r) for r in found)


def _analysis() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from opacus.accountants.analysis import rdp
    except ImportError as error:
        raise SettingError(
            "privacy.clip: the accountant needs Opacus; install it with `pip install 'fedl2g[privacy]'`"
        ) from error
    return rdp
