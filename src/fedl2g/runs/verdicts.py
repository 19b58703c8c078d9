"""Verdicts: whether a method is better than a reference, how sure that is, and for which clients.

The numbers come from the records of the runs alone, from the round that each run selected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from fedl2g.errors import SettingError
from fedl2g.round.record import RoundRecord, selected_record
from fedl2g.runs.statistics import (
    LEVEL,
    Interval,
    clients_interval,
    crossed_interval,
    holm,
    samples_interval,
    seeds_interval,
    signed_rank,
)

if TYPE_CHECKING:
    from fedl2g.datasets import Partition

DEFAULT_REFERENCE = "local"  # what clients have without federation
Verdict = Literal["helps", "harms", "no clear difference", "no verdict yet"]
Change = Literal["gains", "unchanged", "loses"]


class Count(NamedTuple):
    """One client's test result: how many of its samples were predicted correctly."""

    correct: int
    samples: int


Counts = Mapping[int, Mapping[int, Count]]
"""The results of one method: by seed, then by client."""

_Pairs = Mapping[int, Mapping[int, tuple[Count, Count]]]
"""By seed and client: the counts of the method and of the reference."""


@dataclass(frozen=True)
class ClientChange:
    """One client's difference, with an interval for the binomial noise of its test samples alone."""

    client: int
    seed: int | None  # None: the same client in all seeds, and the mean over them
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
    clients: tuple[ClientChange, ...]
    over: bool = True  # whether all runs of both methods have ended

    @property
    def verdict(self) -> Verdict:
        """What the interval says: it is above zero, below, or includes it; nothing before the runs are over."""
        if not self.over:
            return "no verdict yet"
        return "helps" if self.low > 0 else "harms" if self.high < 0 else "no clear difference"

    @property
    def gain(self) -> int:
        """The number of clients that gain more than the noise of their test samples."""
        return self._changes["gains"]

    @property
    def unchanged(self) -> int:
        """The number of clients that neither gain nor lose more than the noise of their test samples."""
        return self._changes["unchanged"]

    @property
    def lose(self) -> int:
        """The number of clients that lose more than the noise of their test samples."""
        return self._changes["loses"]

    @property
    def worst(self) -> ClientChange:
        """The client that lost most (or gained least)."""
        return min(self.clients, key=lambda one: one.difference)

    @property
    def _changes(self) -> Counter[str]:
        return Counter(one.change for one in self.clients)

    @property
    def sentence(self) -> str:
        """The verdict as one sentence."""
        decided = self.verdict in ("helps", "harms")
        end = f"it {self.verdict} here" if decided else f"{self.verdict} here"
        if not self.over:
            end = "no verdict before all their runs are over"
        low, high = (_bound(value, decided=decided) for value in (self.low, self.high))
        return (
            f"{self.method} against {self.reference}: {points(self.difference)} points [{low}, {high}]; "
            f"{self.gain} of {self._whose} gain{'s' * (self.gain == 1)}, "
            f"{self.lose} lose{'s' * (self.lose == 1)}: {end}{self._scope}."
        )

    @property
    def _scope(self) -> str:
        if len(self.seeds) == 1:
            return f" (one seed: the interval covers {self.covers} only)"
        return " (two seeds hardly show how much seeds differ; run five)" if len(self.seeds) == 2 else ""

    @property
    def _whose(self) -> str:
        total = len(self.clients)
        text = f"{total} client{'s' * (total != 1)}"
        seeds = len(self.seeds)
        if seeds == 1 or self.worst.seed is None:
            return text
        return f"{text} (in {seeds} seeds)" if total % seeds else f"{text} ({total // seeds} in each of {seeds} seeds)"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            **{name: value for name, value in asdict(self).items() if name != "over"},
            "seeds": list(self.seeds),
            "clients": [asdict(one) for one in self.clients],
            "level": LEVEL,
            "gain": self.gain,
            "unchanged": self.unchanged,
            "lose": self.lose,
            "worst": asdict(self.worst),
            "verdict": self.verdict,
            "sentence": self.sentence,
        }


def points(value: float, digits: int = 1) -> str:
    """A difference of accuracies in points of a percent, with its sign; zero has none."""
    text = f"{100 * value:+.{digits}f}"
    return text if float(text) else text[1:]


def counts(history: Sequence[RoundRecord]) -> dict[int, Count]:
    """The test results of every client in the round that was selected; empty without an evaluation."""
    best = selected_record(history)
    if best is None or best.accuracy is None:
        return {}
    accuracy = best.accuracy
    return {
        client: Count(round(accuracy.clients[client] * samples), samples)
        for client, samples in accuracy.samples.items()
        if samples
    }


def same_clients(partitions: Iterable[Partition]) -> bool:
    """Whether client i holds the same samples in all partitions (those of several seeds), however split for tests."""
    held = [partition.holdings for partition in partitions]
    return all(len(one) == len(held[0]) and all(map(np.array_equal, one, held[0])) for one in held)


def reference_among(methods: Sequence[str], wanted: str | None) -> str | None:
    """The reference of a comparison: the wanted one, or `local` where it is among the methods, or None."""
    if wanted is None:
        return DEFAULT_REFERENCE if DEFAULT_REFERENCE in methods else None
    if wanted not in methods:
        raise SettingError(
            f"against: {wanted} is not among the methods of this comparison; choose one of {', '.join(methods)}, or "
            "add it to the methods"
        )
    return wanted


def against(
    reference: str, histories: Mapping[str, Mapping[int, Sequence[RoundRecord]]], *, crossed: bool = False
) -> list[Difference]:
    """Every other method against the reference, in their order; without those that share no seed and client with it.

    `histories` are the records of the runs by method and seed. `crossed`: client i is the same in all seeds.
    """
    found = {method: {seed: counts(history) for seed, history in runs.items()} for method, runs in histories.items()}
    return compare(reference, found, crossed=crossed)


def compare(reference: str, methods: Mapping[str, Counts], *, crossed: bool = False) -> list[Difference]:
    """The same from counts."""
    found = [
        difference(method, results, reference, methods[reference], crossed=crossed)
        for method, results in methods.items()
        if method != reference and _pairs(results, methods[reference])
    ]
    corrected = holm([one.p for one in found])
    return [replace(one, p_holm=p) for one, p in zip(found, corrected, strict=True)]


def difference(method: str, results: Counts, reference: str, others: Counts, *, crossed: bool = False) -> Difference:
    """Compare two methods over the seeds and clients that both have."""
    pairs = _pairs(results, others)
    if not pairs:
        raise ValueError(f"{method} and {reference} share no seed and client")
    # Clients that are evaluated in some seeds only cannot be averaged over seeds.
    crossed = crossed and len(pairs) > 1 and len({frozenset(clients) for clients in pairs.values()}) == 1
    estimate, covers = _interval(pairs, crossed=crossed)
    clients = tuple(_mean_changes(pairs) if crossed else _changes(pairs))
    p = signed_rank([one.difference for one in clients])
    return Difference(method, reference, tuple(pairs), *estimate, covers, p, p, clients)


def _pairs(results: Counts, others: Counts) -> _Pairs:
    found = {
        seed: {
            client: (count, others[seed][client])
            for client, count in sorted(clients.items())
            if client in others[seed] and count.samples == others[seed][client].samples > 0
        }
        for seed, clients in sorted(results.items())
        if seed in others
    }
    return {seed: clients for seed, clients in found.items() if clients}


def _interval(pairs: _Pairs, *, crossed: bool) -> tuple[Interval, str]:
    """The difference of the pooled accuracies with its interval, and what the interval covers."""
    gained = [np.array([a.correct - b.correct for a, b in one.values()], dtype=float) for one in pairs.values()]
    samples = [np.array([a.samples for a, _ in one.values()], dtype=float) for one in pairs.values()]
    if crossed and len(gained[0]) > 1:
        return crossed_interval(gained, samples), "seeds, clients and test samples"
    if len(gained) > 1:
        return seeds_interval(gained, samples), "seeds, clients and test samples"
    if len(gained[0]) > 1:
        return clients_interval(gained[0], samples[0]), "clients and test samples"
    ((own, other),) = next(iter(pairs.values())).values()
    return samples_interval(own.correct, other.correct, own.samples), "test samples"


def _changes(pairs: _Pairs) -> Iterable[ClientChange]:
    """Every client of every seed."""
    for seed, clients in pairs.items():
        for client, (own, other) in clients.items():
            yield _change(client, seed, samples_interval(own.correct, other.correct, own.samples))


def _mean_changes(pairs: _Pairs) -> Iterable[ClientChange]:
    """Clients that are the same in all seeds: the mean over seeds, with the noise of one test set.

    Their test samples may be the same in all seeds, so more seeds do not count as more samples.
    """
    for client in next(iter(pairs.values())):
        rows = np.array(
            [(own.correct, other.correct, own.samples) for own, other in (one[client] for one in pairs.values())]
        )
        yield _change(client, None, samples_interval(*map(float, rows.mean(0))))


def _change(client: int, seed: int | None, found: Interval) -> ClientChange:
    change: Change = "gains" if found.low > 0 else "loses" if found.high < 0 else "unchanged"
    return ClientChange(client, seed, *found, change)


def _bound(value: float, *, decided: bool) -> str:
    """A bound of an interval; with more digits if it decided the verdict and looks like zero otherwise."""
    text = points(value)
    return points(value, 2) if decided and not float(text) else text
