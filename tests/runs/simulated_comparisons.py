"""Comparisons of two methods whose true difference is known: how often the interval covers it.

python tests/runs/simulated_comparisons.py      # the Markdown table of docs/statistics.md; a few minutes
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

import numpy as np

from fedl2g.runs.verdicts import Count, Counts, difference

CLIENT_SPREAD = 0.03  # standard deviation of the clients' true differences
SHARED = 0.7  # of the samples, both methods find equally hard


@dataclass(frozen=True)
class Setting:
    seeds: int
    clients: int
    seed_spread: float = 0.0  # standard deviation of what a seed adds to all its clients' differences
    skewed: bool = False  # sizes of test sets as a Dirichlet(0.1) partition makes them, or equal
    effect: float = 0.02
    fixed: bool = False  # the same clients in all seeds


def simulate(setting: Setting, generator: np.random.Generator) -> tuple[Counts, Counts, float]:
    """The counts of a method and of its reference, and the true difference.

    With one seed the truth is that of the seed; with several, that of all seeds that could have been drawn.
    """
    shape = (setting.seeds, setting.clients)
    shift = setting.seed_spread * generator.standard_normal((setting.seeds, 1))
    other = generator.uniform(0.5, 0.8, shape)
    clients = CLIENT_SPREAD * generator.standard_normal(shape)
    samples = np.stack([_sizes(setting, generator) for _ in range(setting.seeds)])
    if setting.fixed:
        clients, samples = (np.repeat(values[:1], setting.seeds, axis=0) for values in (clients, samples))
    own = np.clip(other + setting.effect + shift + clients, 0, 1)
    shared = generator.binomial(samples, SHARED)
    upper = generator.binomial(shared, np.maximum(own, other))
    lower = generator.binomial(upper, np.minimum(own, other) / np.maximum(own, other))
    better = own >= other
    correct = np.where(better, upper, lower) + generator.binomial(samples - shared, own)
    correct_other = np.where(better, lower, upper) + generator.binomial(samples - shared, other)
    truth = setting.effect + (float(shift[0, 0]) if setting.seeds == 1 else 0.0)
    return _counts(correct, samples), _counts(correct_other, samples), truth


def _sizes(setting: Setting, generator: np.random.Generator) -> np.ndarray:
    if not setting.skewed:
        return np.full(setting.clients, 23)
    shares = generator.dirichlet(np.full(setting.clients, 0.1), size=10)
    return np.maximum(2, (2.3 * setting.clients * shares).sum(axis=0).astype(int))


def _counts(correct: np.ndarray, samples: np.ndarray) -> Counts:
    return {
        seed: {client: Count(int(c), int(n)) for client, (c, n) in enumerate(zip(*rows, strict=True))}
        for seed, rows in enumerate(zip(correct, samples, strict=True))
    }


@dataclass(frozen=True)
class Outcome:
    coverage: float  # share of the intervals that hold the truth
    helps: float  # share of the verdicts "helps"
    width: float  # mean width of the interval, in points


def measure(setting: Setting, comparisons: int) -> Outcome:
    """Compare many times."""
    generator = np.random.default_rng(7)
    covered = helps = 0
    width = 0.0
    for _ in range(comparisons):
        method, reference, truth = simulate(setting, generator)
        found = difference("method", method, "reference", reference, crossed=setting.fixed)
        covered += found.low <= truth <= found.high
        helps += found.verdict == "helps"
        width += 100 * (found.high - found.low)
    return Outcome(covered / comparisons, helps / comparisons, width / comparisons)


SETTINGS = tuple(
    Setting(seeds, 20, spread, skewed)
    for seeds, spread in ((1, 0.0), (2, 0.02), (3, 0.02), (5, 0.02))
    for skewed in (False, True)
)


def main() -> None:
    lines = ["| seeds | test sets | coverage, 2 points better | coverage, no difference | false helps | true helps |"]
    lines += ["|---|---|---|---|---|---|"]
    for setting in SETTINGS:
        effect, none = measure(setting, 1000), measure(replace(setting, effect=0.0), 1000)
        lines.append(
            f"| {setting.seeds} | {'skewed' if setting.skewed else 'equal'} | {effect.coverage:.1%} "
            f"| {none.coverage:.1%} | {none.helps:.1%} | {effect.helps:.1%} |"
        )
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
