"""Verdicts on methods: counts from records, whom a method helps, the sentence, the reference."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from fedl2g.datasets import Partition
from fedl2g.errors import SettingError
from fedl2g.round.record import Accuracy, RoundRecord
from fedl2g.runs.verdicts import (
    ClientChange,
    Count,
    Difference,
    against,
    compare,
    counts,
    difference,
    points,
    reference_among,
    same_clients,
)


def record(round: int, clients: dict[int, float], validation: float | None = None, samples: int = 10) -> RoundRecord:
    pooled = sum(clients.values()) / len(clients)
    accuracy = Accuracy(pooled, pooled, 0.0, clients, samples=dict.fromkeys(clients, samples), validation=validation)
    return RoundRecord(round, accuracy=accuracy)


def seed(*correct: int, samples: int = 100) -> dict[int, Count]:
    return {client: Count(one, samples) for client, one in enumerate(correct)}


def test_counts_come_from_the_round_that_the_run_selected() -> None:
    best_on_test = [record(0, {0: 0.1, 1: 0.3}), record(1, {0: 0.9, 1: 0.7}), record(2, {0: 0.5, 1: 0.5})]
    assert counts(best_on_test) == {0: (9, 10), 1: (7, 10)}
    on_validation = [record(1, {0: 0.9, 1: 0.7}, validation=0.4), record(2, {0: 0.5, 1: 0.6}, validation=0.6)]
    assert counts(on_validation) == {0: (5, 10), 1: (6, 10)}
    thirds = [record(1, {0: 1 / 3, 1: 2 / 3}, samples=3)]
    assert counts(thirds) == {0: (1, 3), 1: (2, 3)}  # fractions come back as whole samples
    assert counts([RoundRecord(0)]) == {}


def test_clients_gain_or_lose_if_it_is_more_than_the_noise_of_their_test_samples() -> None:
    method = {4: seed(80, 50, 55, 20)}
    found = difference("m", method, "local", {4: seed(50, 50, 50, 50)})
    assert [(one.client, one.seed, one.change) for one in found.clients] == [
        (0, 4, "gains"), (1, 4, "unchanged"), (2, 4, "unchanged"), (3, 4, "loses"),
    ]  # fmt: skip
    assert (found.gain, found.unchanged, found.lose) == (1, 2, 1)
    assert (found.worst.client, found.worst.difference) == (3, -0.3)
    assert found.difference == pytest.approx(5 / 400)
    assert found.seeds == (4,)


def test_clients_of_other_seeds_are_other_clients_unless_they_hold_the_same_samples() -> None:
    """Client 0 gains in one seed as much as another client 0 loses in the other: that is not one client unchanged."""
    method, reference = {0: seed(80, 50), 1: seed(20, 50)}, {0: seed(50, 50), 1: seed(50, 50)}
    apart = difference("m", method, "local", reference)
    assert [(one.client, one.seed, one.change) for one in apart.clients] == [
        (0, 0, "gains"), (1, 0, "unchanged"), (0, 1, "loses"), (1, 1, "unchanged"),
    ]  # fmt: skip
    same = difference("m", method, "local", reference, crossed=True)
    assert [(one.client, one.seed, one.change) for one in same.clients] == [
        (0, None, "unchanged"),
        (1, None, "unchanged"),
    ]
    assert same.difference == apart.difference == 0


def test_more_seeds_are_not_more_test_samples() -> None:
    """62 against 50 of 100 is noise, and stays so if the same samples are predicted in five seeds."""
    runs = {number: seed(62, 50) for number in range(5)}
    found = difference("m", runs, "local", {number: seed(50, 50) for number in range(5)}, crossed=True)
    assert [one.change for one in found.clients] == ["unchanged", "unchanged"]


def test_only_seeds_and_clients_of_both_are_compared() -> None:
    method = {0: seed(9, 9, 9, samples=10), 1: seed(1, 1, samples=10), 2: {0: Count(5, 10)}}
    reference = {0: seed(5, 5, samples=10), 2: {1: Count(5, 10)}, 3: seed(7, samples=10)}
    found = difference("m", method, "local", reference)
    assert found.seeds == (0,)
    assert found.difference == pytest.approx(0.4)
    other_samples = {0: {0: Count(5, 11)}}
    with pytest.raises(ValueError, match="share no seed and client"):
        difference("m", method, "local", other_samples)


def test_every_method_is_compared_with_the_reference_in_the_given_order_and_p_values_are_corrected() -> None:
    base = {0: seed(*range(50, 56))}
    better = {0: seed(*(50 + client + 10 + client for client in range(6)))}  # six gains, all different: p = 2/64
    mixed = {0: seed(53, 49, 52, 55, 50, 59)}
    found = compare("local", {"b": mixed, "local": base, "a": better, "elsewhere": {9: seed(1)}})
    assert [one.method for one in found] == ["b", "a"]
    assert found[1].p == pytest.approx(2 / 64)
    assert found[1].p_holm == pytest.approx(4 / 64)
    assert found[0].p_holm == found[0].p  # the larger of two
    assert found[1].verdict == "helps"


def test_verdicts_from_histories() -> None:
    histories = {
        "local": {0: [record(1, {0: 0.5, 1: 0.6})], 1: [record(1, {0: 0.4, 1: 0.6})]},
        "m": {0: [record(1, {0: 0.6, 1: 0.6}), record(2, {0: 0.1, 1: 0.1})], 1: [record(1, {0: 0.6, 1: 0.6})]},
    }
    (found,) = against("local", histories)
    assert found.difference == pytest.approx((0.05 + 0.1) / 2)
    assert found.covers == "seeds, clients and test samples"
    json.dumps(found.to_dict(), allow_nan=False)
    worst = found.to_dict()["worst"]
    assert (worst["client"], worst["seed"], worst["difference"], worst["change"]) == (1, 0, 0.0, "unchanged")


CLIENTS = tuple(
    ClientChange(client, seed, 0.0, 0.0, 0.0, change)
    for seed in range(5)
    for client, change in enumerate(["gains"] * 3 + ["unchanged"] * 8 + ["loses"] * 9)
)
FOUND = Difference(
    "fedl2g-f", "local", (0,), -0.019, -0.030, -0.008, "clients and test samples", 0.01, 0.02, CLIENTS[:20]
)


def test_the_verdict_is_one_sentence() -> None:
    assert FOUND.sentence == (
        "fedl2g-f against local: -1.9 points [-3.0, -0.8]; 3 of 20 clients gain, 9 lose: it harms here "
        "(one seed: the interval covers clients and test samples only)."
    )
    several = replace(FOUND, seeds=(0, 1, 2, 3, 4), clients=CLIENTS)
    assert several.sentence == (
        "fedl2g-f against local: -1.9 points [-3.0, -0.8]; 15 of 100 clients (20 in each of 5 seeds) gain, 45 lose: it "
        "harms here."
    )
    institutions = tuple(replace(one, seed=None) for one in CLIENTS[:20])
    assert replace(several, clients=institutions).sentence == (
        "fedl2g-f against local: -1.9 points [-3.0, -0.8]; 3 of 20 clients gain, 9 lose: it harms here."
    )


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (-0.03, 0.002, "[-3.0, +0.2]; 1 of 1 client gains, 0 lose: no clear difference here"),
        (0.0, 0.02, "[0.0, +2.0]; 1 of 1 client gains, 0 lose: no clear difference here"),
        (0.0003, 0.02, "[+0.03, +2.0]; 1 of 1 client gains, 0 lose: it helps here"),  # not "[0.0"
        (0.001, 0.02, "[+0.1, +2.0]; 1 of 1 client gains, 0 lose: it helps here"),
    ],
)
def test_the_verdict_is_the_one_of_the_interval(low: float, high: float, shown: str) -> None:
    one = replace(FOUND, seeds=(0, 1, 2), low=low, high=high, clients=(replace(CLIENTS[0], seed=None),))
    assert shown in one.sentence


def test_points_have_a_sign_and_zero_has_none() -> None:
    assert [points(x) for x in (0.0123, -0.0123, 0.0, -0.0001, 0.0001)] == ["+1.2", "-1.2", "0.0", "0.0", "0.0"]


def test_the_reference_is_the_given_one_or_local() -> None:
    assert reference_among(["fedproto", "local"], None) == "local"
    assert reference_among(["fedproto", "fedl2g-f"], None) is None
    assert reference_among(["fedproto", "local"], "fedproto") == "fedproto"
    with pytest.raises(SettingError, match=r"against: fedgh is not among the methods .*; choose one of local, fedkd"):
        reference_among(["local", "fedkd"], "fedgh")


def test_clients_are_the_same_if_they_hold_the_same_samples_however_split() -> None:
    def partition(*clients: tuple[list[int], list[int]]) -> Partition:
        return Partition(*(tuple(np.array(one, dtype=np.int64) for one in side) for side in zip(*clients, strict=True)))

    first = partition(([0, 1, 2], [3]), ([5, 6], [4]))
    assert same_clients([first, partition(([3, 1, 2], [0]), ([4, 6], [5]))])
    assert not same_clients([first, partition(([0, 1, 5], [3]), ([2, 6], [4]))])
    assert not same_clients([first, partition(([0, 1, 2], [3]))])
