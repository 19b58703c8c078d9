"""The statistics of a comparison: intervals, signed ranks, Holm's correction, binomial noise.

Two methods ran on the same partitions and seeds, so the numbers are differences of accuracy on the same test samples,
paired by seed and client. Known of each pair is how many of the client's test samples both got right.

**What is estimated.** The difference of the pooled accuracies, expected for a new draw of everything that varied: with
several seeds, another seed (with its partition, initial networks and orders), other clients and other test samples;
with one seed, other clients and other test samples of that seed; with a single client and seed, its test samples alone.

**The interval.** A hierarchical bootstrap redraws units with replacement. The uncertainty of every level shows in the
spread between the units of the highest one: the accuracy of a seed varies with the seed, with its clients and with
their samples. So the highest level that varied is redrawn, and each unit brings all clients and samples below it. To
redraw the lower levels once more would count their noise twice, and redrawing clients alone would leave that of seeds
out. If the clients are the same in all seeds (institutions), they are not a level below the seeds: both are redrawn,
one after the other, and what both redraws contain is subtracted once. Three corrections matter for few units:

- k units redrawn from themselves vary by (k - 1) / k too little: the standard error of the redraws is multiplied by
  sqrt(k / (k - 1));
- gains are whole numbers of samples, so a few small units may agree by chance, without any spread: the variance of
  rounding, 1/12 of a sample per unit, is added;
- that standard error is itself an estimate from few units: the interval is the difference plus and minus Student's t
  quantile times the standard error. The degrees of freedom are the effective number of units minus 1; clients with many
  test samples weigh more, and (sum n)^2 / sum n^2 (Kish) is how many equal clients would be worth as much.

Plain percentiles of the redraws would cover the truth too rarely: of three seeds, one redraw in nine is one seed three
times. Shorter intervals from few seeds would need an assumption on how much seeds differ. The coverage is
measured by `python tests/runs/simulated_comparisons.py` (docs/statistics.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

LEVEL = 0.95
RESAMPLES = 10_000
_FEWEST_RESAMPLES, _MOST_DRAWS = 400, 10**8  # fewer resamples for more than ten thousand clients
_BATCH = 2**20  # units redrawn at a time: bounds the memory
_SEED = 0
_Z = float(stats.norm.ppf((1 + LEVEL) / 2))
_EXACT_CLIENTS = 13  # 2**13 signs are enumerated

Floats = NDArray[np.float64]


class Interval(NamedTuple):
    """A difference of accuracies, and the interval that holds the true one with 95 % confidence."""

    difference: float
    low: float
    high: float


class _Error(NamedTuple):
    """The variance of an estimate, and the degrees of freedom of that variance."""

    variance: float
    freedom: float


def seeds_interval(gained: Sequence[Floats], samples: Sequence[Floats]) -> Interval:
    """Over two seeds or more, each with clients of its own: their gains (correct predictions) and test samples."""
    by_seed = _by_seed(gained, samples)
    return _around(float(by_seed.mean()), _seeds_error(by_seed, samples))


def clients_interval(gained: Floats, samples: Floats) -> Interval:
    """Over two clients or more of one seed."""
    return _around(float(gained.sum() / samples.sum()), _redrawn(gained, samples, grain=1.0))


def crossed_interval(gained: Sequence[Floats], samples: Sequence[Floats]) -> Interval:
    """Over seeds and clients if every seed has the same clients: two or more of each.

    The variance is that of redrawn seeds plus that of redrawn clients, minus that of redrawn pairs of seed and client,
    which both contain (Cameron, Gelbach and Miller); the degrees of freedom are Satterthwaite's.
    """
    by_seed = _by_seed(gained, samples)
    weights = np.stack([n / n.sum() for n in samples])
    gains = np.stack([g / n.sum() for g, n in zip(gained, samples, strict=True)])
    seeds = _seeds_error(by_seed, samples)
    clients = _redrawn(gains.mean(0), weights.mean(0), grain=float(np.mean([1 / n.sum() for n in samples])))
    pairs = _redrawn(gains.ravel(), weights.ravel(), grain=0.0)
    variance = max(seeds.variance + clients.variance - pairs.variance, seeds.variance, clients.variance)
    freedom = (seeds.variance + clients.variance) ** 2 / (
        seeds.variance**2 / seeds.freedom + clients.variance**2 / clients.freedom
    )
    return _around(float(by_seed.mean()), _Error(variance, freedom))


def samples_interval(correct: float, other: float, samples: float) -> Interval:
    """Over the test samples of one client: the difference of two binomial proportions.

    Agresti and Caffo's interval, which holds for few samples too: the textbook one after a success and a failure are
    added to each of the two. It assumes two separate sets of samples. Here the same samples were predicted twice, so
    the true noise is smaller, and a client is called unchanged more easily.
    """
    estimate = (correct - other) / samples
    p, q = (correct + 1) / (samples + 2), (other + 1) / (samples + 2)
    half = _Z * math.sqrt((p * (1 - p) + q * (1 - q)) / (samples + 2))
    return Interval(estimate, max(min(p - q - half, estimate), -1.0), min(max(p - q + half, estimate), 1.0))


def signed_rank(differences: Sequence[float]) -> float:
    """The two-sided p of Wilcoxon's signed-rank test; 1 if all differences are zero.

    Exact for up to 50 clients without ties; with ties or zeros (Pratt's treatment), exact by enumeration of all signs
    up to 13 clients, the normal approximation above.
    """
    values = np.round(np.asarray(differences, dtype=float), 12)  # equal fractions of samples are ties
    if not values.any():
        return 1.0
    ranked = np.abs(values)
    if len(np.unique(ranked)) == len(ranked) and ranked.all():
        return float(stats.wilcoxon(values).pvalue)
    exact: Any = stats.PermutationMethod(n_resamples=2**_EXACT_CLIENTS)
    method = exact if len(values) <= _EXACT_CLIENTS else "asymptotic"
    return min(1.0, float(stats.wilcoxon(values, zero_method="pratt", method=method).pvalue))


def holm(values: Sequence[float]) -> list[float]:
    """Holm's correction of several p values: the i-th smallest of m times m - i + 1, never below the one before."""
    order = np.argsort(values, kind="stable")
    factors = np.arange(len(values), 0, -1)
    corrected = np.empty(len(values))
    corrected[order] = np.minimum(np.maximum.accumulate(factors * np.asarray(values, dtype=float)[order]), 1.0)
    return [float(value) for value in corrected]


def _by_seed(gained: Sequence[Floats], samples: Sequence[Floats]) -> Floats:
    """The difference of the pooled accuracies in each seed."""
    return np.array([g.sum() / n.sum() for g, n in zip(gained, samples, strict=True)])


def _seeds_error(by_seed: Floats, samples: Sequence[Floats]) -> _Error:
    return _redrawn(by_seed, np.ones(len(by_seed)), grain=float(np.mean([1 / n.sum() for n in samples])))


def _redrawn(gained: Floats, samples: Floats, grain: float) -> _Error:
    """The error of sum(gained) / sum(samples) over units that are redrawn; a unit's gain is a multiple of `grain`."""
    k = len(gained)
    redrawn = stats.bootstrap(
        (gained, samples),
        lambda some, of, axis: some.sum(axis) / of.sum(axis),
        paired=True,
        vectorized=True,
        method="percentile",
        n_resamples=min(RESAMPLES, max(_FEWEST_RESAMPLES, _MOST_DRAWS // k)),
        batch=max(1, _BATCH // k),
        rng=np.random.default_rng(_SEED),  # equal comparisons give equal intervals
    )
    variance = float(redrawn.standard_error) ** 2 * k / (k - 1) + k / 12 * (grain / float(samples.sum())) ** 2
    effective = float(samples.sum() ** 2 / (samples**2).sum())
    return _Error(variance, max(effective - 1, 1.0))


def _around(estimate: float, error: _Error) -> Interval:
    half = float(stats.t.ppf((1 + LEVEL) / 2, error.freedom)) * math.sqrt(error.variance)
    return Interval(estimate, max(estimate - half, -1.0), min(estimate + half, 1.0))
