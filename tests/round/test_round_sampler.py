"""Who takes part: a fixed number without replacement, or each client by itself."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from fedl2g.errors import SettingError
from fedl2g.experiment import Experiment
from fedl2g.privacy.noise_key import KEY_VARIABLE
from fedl2g.registry import samplers
from fedl2g.round.sampler import Poisson, Sampler, Uniform

ROUNDS = range(1, 3001)


def _drawn(sampler: Sampler) -> list[list[int]]:
    return [sampler.draw(round) for round in ROUNDS]


def _within(counts: Counter[object], kinds: int, chance: float) -> None:
    """Each of the kinds was met about as often as its chance says: five deviations of a binomial count."""
    expected = len(ROUNDS) * chance
    deviation = (expected * (1 - chance)) ** 0.5
    assert len(counts) == kinds
    assert all(abs(count - expected) < 5 * deviation for count in counts.values())


def test_uniform_draws_a_fixed_number_without_replacement() -> None:
    drawn = _drawn(Uniform(Experiment(clients=7, participation=0.43, seed=3)))
    assert all(len(set(clients)) == 3 and clients == sorted(clients) for clients in drawn)
    _within(Counter(client for clients in drawn for client in clients), 7, 3 / 7)
    pairs = Counter(pair for clients in drawn for pair in combinations(clients, 2))
    _within(pairs, 21, 1 / 7)  # C(5, 1) / C(7, 3): every pair alike


@pytest.mark.parametrize(("participation", "count"), [(0.29, 29), (1.0, 100), (0.001, 1), (0.999, 99)])
def test_the_number_is_the_rounded_down_share(participation: float, count: int) -> None:
    experiment = Experiment(clients=100, participation=participation)
    assert len(Uniform(experiment).draw(1)) == count


def test_poisson_draws_each_client_by_itself() -> None:
    drawn = _drawn(Poisson(Experiment(clients=6, participation=0.3, seed=3)))
    assert all(clients == sorted(set(clients)) for clients in drawn)
    _within(Counter(client for clients in drawn for client in clients), 6, 0.3)
    _within(Counter(pair for clients in drawn for pair in combinations(clients, 2)), 15, 0.09)  # independent
    sizes = Counter(len(clients) for clients in drawn)
    for size, ways in ((0, 1), (1, 6), (2, 15)):
        chance = ways * 0.3**size * 0.7 ** (6 - size)
        _within(Counter({size: sizes[size]}), 1, chance)


@pytest.mark.parametrize("kind", [Uniform, Poisson])
def test_a_round_is_drawn_anew_to_the_same_clients(kind: type[Sampler], monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = Experiment(clients=50, participation=0.3, seed=1)
    one, other = kind(experiment), kind(experiment)
    assert [one.draw(round) for round in (3, 1, 2)] == [other.draw(round) for round in (3, 1, 2)]
    assert one.draw(1) != one.draw(2)
    assert one.draw(1) != kind(Experiment(clients=50, participation=0.3, seed=2)).draw(1)
    assert one.state_dict() == ({}, {})
    before = one.draw(1)
    monkeypatch.setenv(KEY_VARIABLE, "a secret")
    assert (one.draw(1) == before) == (kind is Uniform)  # who took part is secret under the guarantee alone


@pytest.mark.parametrize(
    ("drawn", "planned"),
    [
        *[([0, 2], [0, 2]), (np.array([1, 2]), [1, 2]), ([], [])],
        *[(wrong, None) for wrong in ([2, 0], [1, 1], [-1, 0], [0, 3], [0.0], "01")],
    ],
)
def test_what_a_sampler_of_ones_own_draws_is_checked(drawn: Any, planned: list[int] | None) -> None:
    class Mine(Sampler):
        def draw(self, round: int) -> list[int]:
            return drawn

    sampler = Mine(Experiment(clients=3))
    if planned is None:
        with pytest.raises(SettingError, match=r"^sampler: .* for round 7; expected numbers from 0 to 2, ascending"):
            sampler.plan(7)
    else:
        assert sampler.plan(7) == planned
        assert {type(client) for client in sampler.plan(7)} <= {int}  # numpy's cannot be written to the records


def test_the_guarantee_brings_its_own_sampler() -> None:
    assert samplers.get(Experiment().sampler_name) is Uniform
    private = Experiment(privacy={"clip": 1.0, "noise_multiplier": 1.0})
    assert samplers.get(private.sampler_name) is Poisson
