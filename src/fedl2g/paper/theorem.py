"""The paper's convergence statement as formulas, and a second bound that fits the squared loss (imports no torch).

One client, T rounds of E steps of rate eta_c, a server of rate eta_s; L = CE + MSE(z, G[y]), L' = CE alone. The paper
assumes: L is L1-smooth; the stochastic gradient omega of L is unbiased with variance at most sigma^2 and E|omega| <= R;
E|omega'| <= R' for that of L'. The moment tE+1/2 is after the guiding vectors arrived and before the first step.

    lemma 1    E L^{(t+1)E} <= L^{tE+1/2} + (L1 eta_c^2 / 2 - eta_c) sum_e |grad L^{tE+e}|^2 + L1 E eta_c^2 sigma^2 / 2
    lemma 2    E L^{(t+1)E+1/2} <= L^{(t+1)E} + 2 eta_c^2 eta_s R' E R
    theorem 1  is their sum: one round
    theorem 2  1/T sum_t sum_e E |grad L^{tE+e}|^2
                   <= (2 Delta / T + L1 E eta_c^2 sigma^2 + 4 eta_c^2 eta_s R' E R) / (2 eta_c - L1 eta_c^2)

Lemma 2's proof takes the distance |z - G[y]| unsquared, where the method trains the mean *squared* one, and puts a
difference of parameters where the Jacobian of z stands. Its term is therefore not the drift of the loss that is
trained. For that loss, with M the width of a guiding vector, row the largest row of the guiding gradient and distance
the largest |z - (G_t[y] + G_{t+1}[y]) / 2|,

    L_{t+1}(w) - L_t(w) = 1/M mean <G_t[y] - G_{t+1}[y], 2 z - G_t[y] - G_{t+1}[y]> <= 2 eta_s row distance / M

holds for any weights w. Put in the place of lemma 2's term it gives the bound for the squared loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

LEFT_OUT = (
    "Lemma 2's proof takes the distance between z and its guiding vector unsquared, but the method trains the mean "
    "squared distance; and it puts a difference of parameters where the Jacobian of z stands. So its term is not the "
    "drift of the loss that is trained: that the paper's bound holds in a measurement does not follow from its proof. "
    "The bound for the squared loss is derived from the trained loss itself."
)


@dataclass(frozen=True)
class Constants:
    """The constants of the paper's assumptions, and the rates and steps they are used with."""

    smoothness: float  # L1
    sigma: float
    gradient: float  # R
    own_gradient: float  # R'
    delta: float  # L^0 - L*
    steps: int  # E
    client_lr: float  # eta_c
    server_lr: float  # eta_s

    @property
    def drift(self) -> float:
        """Lemma 2: how much the server's step may raise the loss."""
        return 2 * self.client_lr**2 * self.server_lr * self.own_gradient * self.steps * self.gradient

    @property
    def noise(self) -> float:
        """Lemma 1's last term: how much the noise of the batches may raise the loss in a round."""
        return self.smoothness * self.steps * self.client_lr**2 * self.sigma**2 / 2


def squared_loss_drift(server_lr: float, row: float, distance: float, width: int) -> float:
    """How much the server's step may raise the squared loss; `row` and `distance` as at the top of this file."""
    return 2 * server_lr * row * distance / width


def lemma_1(start: float, squared_norms: Iterable[float], constants: Constants) -> float:
    """The bound on the loss after a round's local training."""
    eta = constants.client_lr
    return start + (constants.smoothness * eta**2 / 2 - eta) * sum(squared_norms) + constants.noise


def theorem_1(start: float, squared_norms: Iterable[float], constants: Constants, drift: float | None = None) -> float:
    """The bound on the loss at the start of the next round; `drift` replaces lemma 2's term."""
    return lemma_1(start, squared_norms, constants) + (constants.drift if drift is None else drift)


def theorem_2(rounds: float, constants: Constants, drift: float | None = None, delta: float | None = None) -> float:
    """The bound on 1/T sum_t sum_e |grad L|^2 after T rounds; `drift` and `delta` replace the paper's terms."""
    eta = constants.client_lr
    slack = 2 * eta - constants.smoothness * eta**2
    if slack <= 0:
        limit = 2 / constants.smoothness
        raise ValueError(f"eta_c: {eta} is too large; the bound needs eta_c < 2 / L1 = {limit:.3g}")
    falling = 2 * (constants.delta if delta is None else delta) / rounds
    return (falling + 2 * constants.noise + 2 * (constants.drift if drift is None else drift)) / slack


def largest_rate(epsilon: float, constants: Constants) -> float:
    """The limit below which eta_c lets theorem 2 fall below epsilon; half of it asks for the fewest rounds."""
    c = constants
    drift = 4 * c.server_lr * c.own_gradient * c.steps * c.gradient
    return 2 * epsilon / (c.smoothness * (c.steps * c.sigma**2 + epsilon) + drift)


def rounds_needed(epsilon: float, constants: Constants, client_lr: float) -> int | None:
    """The smallest T for which theorem 2 is below epsilon at this eta_c; None if no T is enough."""
    c, eta = constants, client_lr
    drift = 4 * c.server_lr * c.own_gradient * c.steps * c.gradient
    gain = epsilon * eta * (2 - c.smoothness * eta) - eta**2 * (c.smoothness * c.steps * c.sigma**2 + drift)
    return math.floor(2 * c.delta / gain) + 1 if gain > 0 else None
