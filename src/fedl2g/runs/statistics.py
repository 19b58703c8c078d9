"""Says whether a method is better than a reference, how sure that is, and for which clients.

Both ran on the same partitions and seeds, so the numbers are differences of accuracy on the same test samples, paired by
(seed, client). Known of each pair is how many of the client's test samples the method and the reference got right.

**What is estimated.** The difference of the pooled accuracies, expected for a new draw of everything that varied: with
several seeds, another seed (with its partition, initial networks and orders), other clients and other test samples; with
one seed, other clients and other test samples of that seed. With a single client and seed, its test samples alone.

**The interval.** A hierarchical bootstrap redraws units with replacement. The uncertainty of every level shows in the
spread between the units of the highest one: the accuracy of a seed varies with the seed, with its clients and with
their samples. So the highest level that varied is redrawn, and each unit brings all clients and samples below it. To redraw the
lower levels again would count their noise twice, and leaving seeds out would not count theirs at all. Three corrections matter for few units:

- k units redrawn from themselves vary by (k - 1) / k too little: the standard error of the redraws is multiplied by
  sqrt(k / (k - 1));
- gains are whole numbers of samples, so a few small units may agree by chance, without any spread: the variance
  of rounding, 1/12 of a sample per unit, is added;
- that standard error is itself an estimate from few units: the interval is the difference plus and minus Student's t
  quantile times the standard error. The degrees of freedom are the effective number of units minus 1; clients
  with many test samples weigh more, and (sum n)^2 / sum n^2 (Kish) is how many equal clients would be worth as much.

Plain percentiles of the redraws cover the truth too rarely (two to three redraws in a hundred of three seeds are three times
the lowest one). Shorter intervals from few seeds would need an assumption on how much seeds differ. `make test-statistics` measures
the coverage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

LEVEL = 0.95
RESAMPLES = 10_000
_FEWEST_RESAMPLES, _MOST_DRAWS = 400, 10**8  # fewer resamples for more than ten thousand clients
_BATCH = 2**20  # units redrawn at a time: bounds the memory
_SEED = 0
_Z = float(stats.norm.ppf((1 + LEVEL) / 2))

Verdict = Literal["helps", "harms", "no clear difference"]
Change = Literal["gains", "unchanged", "loses"]
Floats = NDArray[np.float64]


class Count(NamedTuple):
    """One client's test result: how many of its samples were predicted correctly."""

    correct: int
    samples: int


Counts = Mapping[int, Mapping[int, Count]]
"""The results of one method: by seed, then by client."""


@dataclass(frozen=True)
class ClientChange:
    """One client's difference over all seeds, with an interval for the binomial noise of its test samples alone."""

    difference: float
    low: float
    high: float
    change: Change


@dataclass(frozen=True)
class Difference:
    """A method against a reference; accuracies between 0 and 1."""

    method: str
    reference: str
    seeds: tuple[int, ...]
    difference: float
    low: float
    high: float
    covers: str  # what the interval accounts for
    p: float  # Wilcoxon's signed-rank test over clients
    p_holm: float  # the same, corrected for the number of methods
    clients: dict[int, ClientChange]

    @property
    def verdict(self) -> Verdict:
        """What the interval says: it is above zero, below, or includes it."""
        return "helps" if self.low > 0 else "harms" if self.high < 0 else "no clear difference"

    @property
    def gain(self) -> int:
        """The number of clients that gain more than the noise of their test samples."""
        return self._count("gains")

    @property
    def lose(self) -> int:
        """The number of clients that lose more than the noise of their test samples."""
        return self._count("loses")

    @property
    def worst(self) -> tuple[int, float]:
        """The client that lost most (or gained least), and its difference."""
        return min(((client, one.difference) for client, one in self.clients.items()), key=lambda found: found[1])

    def _count(self, change: Change) -> int:
        return sum(one.change == change for one in self.clients.values())

    def sentence(self) -> str:
        """The verdict as one sentence."""
        end = f"it {self.verdict} here" if self.verdict != "no clear difference" else f"{self.verdict} here"
        total = len(self.clients)
        scope = f" (one seed: the interval covers {self.covers} only)" if len(self.seeds) == 1 else ""
        return (
            f"{self.method} against {self.reference}: {points(self.difference)} points "
            f"[{points(self.low)}, {points(self.high)}]; {self.gain} of {total} client{'s' * (total != 1)} "
            f"gain{'s' * (self.gain == 1)}, {self.lose} lose{'s' * (self.lose == 1)}: {end}{scope}."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        client, change = self.worst
        return {
            **asdict(self),
            "seeds": list(self.seeds),
            "level": LEVEL,
            "gain": self.gain,
            "unchanged": self._count("unchanged"),
            "lose": self.lose,
            "worst": {"client": client, "difference": change},
            "verdict": self.verdict,
            "sentence": self.sentence(),
        }


def points(value: float) -> str:
    """A difference of accuracies in points of a percent, with its sign; zero has none."""
    text = f"{100 * value:+.1f}"
    return "0.0" if float(text) == 0 else text


def against(reference: str, methods: Mapping[str, Counts]) -> list[Difference]:
    """Every other method against the reference, in their order; without those that share no seed and client with it."""
    found = [
        difference(label, counts, reference, methods[reference])
        for label, counts in methods.items()
        if label != reference and _pairs(counts, methods[reference])
    ]
    corrected = holm([one.p for one in found])
    return [replace(one, p_holm=p) for one, p in zip(found, corrected, strict=True)]


def difference(method: str, counts: Counts, reference: str, others: Counts) -> Difference:
    """Compare two methods over the seeds and clients that both have."""
    pairs = _pairs(counts, others)
    if not pairs:
        raise ValueError(f"{method} and {reference} share no seed and client")
    estimate, low, high, covers = interval(pairs)
    clients = _client_changes(pairs)
    p = signed_rank([one.difference for one in clients.values()])
    seeds = tuple(sorted(pairs))
    return Difference(method, reference, seeds, estimate, low, high, covers, p, p, clients)


Pairs = Mapping[int, Mapping[int, tuple[Count, Count]]]
"""By seed and client: the counts of the method and of the reference."""


def _pairs(counts: Counts, others: Counts) -> Pairs:
    found = {
        seed: {
            client: (count, others[seed][client])
            for client, count in sorted(clients.items())
            if client in others[seed] and count.samples == others[seed][client].samples > 0
        }
        for seed, clients in sorted(counts.items())
        if seed in others
    }
    return {seed: clients for seed, clients in found.items() if clients}


def interval(pairs: Pairs) -> tuple[float, float, float, str]:
    """The difference of the pooled accuracies, its interval, and what the interval covers."""
    gained = [np.array([a.correct - b.correct for a, b in one.values()], dtype=float) for one in pairs.values()]
    samples = [np.array([a.samples for a, _ in one.values()], dtype=float) for one in pairs.values()]
    by_seed = np.array([g.sum() / n.sum() for g, n in zip(gained, samples, strict=True)])
    estimate = float(by_seed.mean())
    if len(by_seed) > 1:
        covers = "seeds, clients and test samples"
        half = half_width(by_seed, np.ones(len(by_seed)), grain=float(np.mean([1 / n.sum() for n in samples])))
    elif len(gained[0]) > 1:
        covers = "clients and test samples"
        half = half_width(gained[0], samples[0], grain=1.0)
    else:
        covers = "test samples"
        ((method, reference),) = next(iter(pairs.values())).values()
        _, low, high = _two_proportions(method, reference)
        return estimate, low, high, covers
    return estimate, max(estimate - half, -1.0), min(estimate + half, 1.0), covers


def half_width(gained: Floats, samples: Floats, grain: float) -> float:
    """Half the width of the interval of sum(gained) / sum(samples) over units (seeds or clients) that are redrawn.

    A unit's gain is a multiple of `grain`.
    """
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
    error = math.hypot(
        float(redrawn.standard_error) * math.sqrt(k / (k - 1)), grain * math.sqrt(k / 12) / float(samples.sum())
    )
    effective = float(samples.sum() ** 2 / (samples**2).sum())
    return float(stats.t.ppf((1 + LEVEL) / 2, max(effective - 1, 1.0))) * error


def signed_rank(differences: Sequence[float]) -> float:
    """The two-sided p of Wilcoxon's signed-rank test; 1 if all differences are zero.

    Exact for up to 50 clients without ties; with ties or zeros (Pratt's treatment), exact by enumeration of all signs up to 13
    clients, the normal approximation above.
    """
    values = np.asarray(differences, dtype=float)
    if not values.any():
        return 1.0
    ranked = np.abs(values)
    plain = len(np.unique(ranked)) == len(ranked) and ranked.all()
    if plain:
        method: Any = "auto"
    else:
        method = stats.PermutationMethod(n_resamples=2**13) if len(values) <= 13 else "approx"
    return min(1.0, float(stats.wilcoxon(values, zero_method="pratt" if not plain else "wilcox", method=method).pvalue))


def holm(values: Sequence[float]) -> list[float]:
    """Holm's correction of several p values: the i-th smallest of m times m - i + 1, never below the one before."""
    order = np.argsort(values, kind="stable")
    factors = np.arange(len(values), 0, -1)
    corrected = np.empty(len(values))
    corrected[order] = np.minimum(np.maximum.accumulate(factors * np.asarray(values, dtype=float)[order]), 1.0)
    return [float(value) for value in corrected]


def _client_changes(pairs: Pairs) -> dict[int, ClientChange]:
    """Every client's counts over all seeds, and whether they differ by more than binomial noise.

    The same samples were predicted twice, which makes the noise of the difference smaller than the one assumed here, of two
    separate sets of samples: a client is rather called unchanged.
    """
    sums: dict[int, list[int]] = {}
    for clients in pairs.values():
        for client, (method, reference) in clients.items():
            total = sums.setdefault(client, [0, 0, 0])
            for i, value in enumerate((method.correct, reference.correct, method.samples)):
                total[i] += value
    changes = {}
    for client, (correct, other, samples) in sorted(sums.items()):
        estimate, low, high = _two_proportions(Count(correct, samples), Count(other, samples))
        change: Change = "gains" if low > 0 else "loses" if high < 0 else "unchanged"
        changes[client] = ClientChange(estimate, low, high, change)
    return changes


def _two_proportions(method: Count, reference: Count) -> tuple[float, float, float]:
    """The difference of two proportions with Agresti and Caffo's interval, which holds for few samples too.

    It is the textbook interval after a success and a failure are added to each of the two.
    """
    n = method.samples
    estimate = (method.correct - reference.correct) / n
    p, q = (method.correct + 1) / (n + 2), (reference.correct + 1) / (n + 2)
    half = _Z * math.sqrt((p * (1 - p) + q * (1 - q)) / (n + 2))
    return estimate, max(min(p - q - half, estimate), -1.0), min(max(p - q + half, estimate), 1.0)
