"""The statistics of comparisons, against numbers from tables, from enumeration and from textbook formulas."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from fedl2g.runs.statistics import (
    clients_interval,
    crossed_interval,
    holm,
    samples_interval,
    seeds_interval,
    signed_rank,
)

T = {1: 12.7062, 2: 4.3027, 3: 3.1824}  # Student's 97.5 % quantiles by degrees of freedom, from a table


def array(*values: float) -> np.ndarray:
    return np.array(values, dtype=float)


def enumerated_variance(gained: tuple[float, ...], samples: tuple[float, ...]) -> float:
    """The variance over all equally likely redraws of the units, instead of a random 10,000 of them."""
    redraws = itertools.product(range(len(gained)), repeat=len(gained))
    found = [sum(gained[i] for i in redraw) / sum(samples[i] for i in redraw) for redraw in redraws]
    return float(np.var(found))


def half(found: tuple[float, float, float]) -> float:
    assert found[1] + found[2] == pytest.approx(2 * found[0])
    return (found[2] - found[1]) / 2


def test_the_interval_over_clients_is_that_of_all_their_redraws_and_students_t() -> None:
    gained, samples = (1, 5, -2, 4), (20, 20, 20, 20)
    found = clients_interval(array(*gained), array(*samples))
    assert found.difference == 8 / 80
    variance = enumerated_variance(gained, samples) * 4 / 3 + 4 / 12 / 80**2
    assert half(found) == pytest.approx(T[3] * math.sqrt(variance), rel=0.02)
    # Equal clients: the textbook's t interval of a mean, apart from the rounding.
    rates = [gain / 20 for gain in gained]
    assert enumerated_variance(gained, samples) * 4 / 3 == pytest.approx(np.var(rates, ddof=1) / 4)


def test_clients_with_many_test_samples_weigh_more() -> None:
    gained, samples = (6, 1, 0), (60, 10, 10)
    found = clients_interval(array(*gained), array(*samples))
    assert found.difference == 7 / 80
    variance = enumerated_variance(gained, samples) * 3 / 2 + 3 / 12 / 80**2
    freedom = 80**2 / (60**2 + 10**2 + 10**2) - 1  # 0.68 effective clients more than one: the least, 1, is used
    assert freedom < 1
    assert half(found) == pytest.approx(T[1] * math.sqrt(variance), rel=0.02)


def test_the_interval_over_seeds_takes_the_spread_between_them() -> None:
    gained = [array(1, 3), array(2, 6), array(0, 0)]
    samples = [array(40, 40)] * 3
    found = seeds_interval(gained, samples)
    rates = (4 / 80, 8 / 80, 0.0)
    assert found.difference == pytest.approx(4 / 80)
    variance = enumerated_variance(rates, (1, 1, 1)) * 3 / 2 + 1 / 12 / 3 / 80**2
    assert half(found) == pytest.approx(T[2] * math.sqrt(variance), rel=0.02)


def test_seeds_count_as_one_each_whatever_their_number_of_samples() -> None:
    found = seeds_interval([array(4), array(0)], [array(40), array(400)])
    assert found.difference == pytest.approx(0.05)


def test_units_that_agree_by_chance_leave_the_variance_of_rounding() -> None:
    found = clients_interval(array(1, 1, 1, 1), array(25, 25, 25, 25))
    assert half(found) == pytest.approx(T[3] * math.sqrt(4 / 12) / 100, rel=1e-4)


def test_the_same_clients_in_all_seeds_are_redrawn_beside_the_seeds() -> None:
    """Seeds that repeat each other say nothing new: their spread is rounding, and the clients' decides."""
    gained, samples = array(1, 5, -2, 4), array(20, 20, 20, 20)
    once = clients_interval(gained, samples)
    found = crossed_interval([gained] * 3, [samples] * 3)
    assert found.difference == pytest.approx(once.difference)
    assert half(found) == pytest.approx(half(once), rel=0.02)
    # Each of them with an own level: the seeds' spread adds to that of the clients.
    shifted = crossed_interval([gained - 2, gained, gained + 2], [samples] * 3)
    seeds = enumerated_variance((0, 0.1, 0.2), (1, 1, 1)) * 3 / 2
    clients = enumerated_variance((1, 5, -2, 4), (20, 20, 20, 20)) * 4 / 3
    cells = tuple(float(x) / 20 for shift in (-2, 0, 2) for x in gained + shift)
    both = float(np.var(cells)) / 12 * 12 / 11
    freedom = (seeds + clients) ** 2 / (seeds**2 / 2 + clients**2 / 3)
    t = np.interp(freedom, [4, 5], [2.7764, 2.5706])
    assert half(shifted) == pytest.approx(t * math.sqrt(seeds + clients - both), rel=0.03)


def test_an_interval_is_the_same_each_time_and_stays_within_all_accuracies() -> None:
    gained, samples = array(3, 9, 1), array(10, 10, 10)
    assert clients_interval(gained, samples) == clients_interval(gained, samples)
    found = seeds_interval([array(10), array(0)], [array(10), array(10)])
    assert (found.low, found.high) == (-1, 1)


def test_the_noise_of_one_test_set_is_agresti_and_caffos() -> None:
    found = samples_interval(10, 6, 10)
    p, q = Fraction(11, 12), Fraction(7, 12)
    error = math.sqrt((p * (1 - p) + q * (1 - q)) / 12)
    assert found == pytest.approx((0.4, 4 / 12 - 1.959964 * error, 4 / 12 + 1.959964 * error), rel=1e-5)
    assert found.low > 0
    same = samples_interval(5, 5, 10)
    assert same.low == -same.high
    perfect = samples_interval(1000, 0, 1000)
    assert perfect.high == 1  # never beyond, and never on the wrong side of what was measured


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ((1, 2, 3, 4, 5), Fraction(2, 32)),  # all 32 signs are equally likely; two are as one-sided
        ((1, 2, 3, 4, -5), Fraction(2 * 10, 32)),  # sums of ranks of at most 5: {}, 1, 2, 3, 4, 5, 12, 13, 14, 23
        ((1, 1, 1, 1), Fraction(2, 16)),  # ties
        ((0, 1, 1, 1), Fraction(2, 8)),  # a zero has no sign
        ((0.1 + 0.2, 0.3, 0.3, 0.3), Fraction(2, 16)),  # equal but for the rounding of floats
        ((0, 0), Fraction(1)),
        ((0.5,), Fraction(1)),
    ],
)
def test_signed_ranks_of_few_clients_are_exact(differences: tuple[float, ...], p: Fraction) -> None:
    assert signed_rank(differences) == pytest.approx(float(p))
    assert signed_rank([-one for one in differences]) == pytest.approx(float(p))


def test_signed_ranks_of_many_clients_with_ties_are_approximately_normal() -> None:
    values = [1.0] * 14 + [-1.0] * 6  # all ranks are 10.5, so the sum is 10.5 times a binomial of 20 fair signs
    z = (14 - 10) / math.sqrt(20 / 4)
    assert signed_rank(values) == pytest.approx(math.erfc(z / math.sqrt(2)), rel=1e-6)


def test_holm_multiplies_the_smallest_most_and_keeps_the_order() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []
