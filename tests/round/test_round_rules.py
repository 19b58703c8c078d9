"""Rules of aggregation in exact numbers: the mean untouched, weights, what few huge values cannot move, settings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedl2g.errors import SettingError
from fedl2g.experiment import Experiment, overlay
from fedl2g.experiment.policies import Aggregation
from fedl2g.payload import Payload, mean_by_class, mean_payload
from fedl2g.registry import rules
from fedl2g.round.rules import Rule, trimmed_mean, weighted_mean, weighted_median

MEAN = Aggregation()


def _by_class(sent: list[Payload], weights: list[float] | None = None, **settings: Any) -> Payload:
    given = Aggregation(**settings)
    return rules.get(given.rule).class_vectors(sent, weights, given)


def _networks(
    sent: list[Payload], start: Payload, *, weights: Any = None, sizes: Any = None, **settings: Any
) -> Payload:
    given = Aggregation(**settings)
    return rules.get(given.rule).networks(sent, start, weights, sizes, given)


def _rows(ids: list[int], *rows: list[float]) -> Payload:
    return {"ids": torch.tensor(ids), "rows": torch.tensor(rows)}


SENT = [
    _rows([0, 1], [1.0, 10.0], [5.0, 5.0]),
    _rows([0], [2.0, 30.0]),
    _rows([0, 2], [9.0, 20.0], [-1.0, 7.0]),
]


def _column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


@pytest.mark.parametrize(
    ("settings", "first"),
    [
        ({"rule": "mean"}, [4.0, 20.0]),
        ({"rule": "median"}, [2.0, 20.0]),
        ({"rule": "trimmed_mean", "trim": 0.34}, [2.0, 20.0]),
        ({"rule": "trimmed_mean", "trim": 0.3}, [4.0, 20.0]),  # 0.9 of a client is cut off: none
    ],
)
def test_class_vectors_by_rule(settings: dict[str, Any], first: list[float]) -> None:
    combined = _by_class(SENT, **settings)
    assert combined["ids"].tolist() == [0, 1, 2]
    assert combined["rows"].tolist() == [first, [5.0, 5.0], [-1.0, 7.0]]


@pytest.mark.parametrize("huge", [1e30, 1e200])
def test_of_two_senders_the_longer_does_not_set_the_bound(huge: float) -> None:
    sent = [
        {"ids": torch.tensor([0]), "rows": torch.tensor([row], dtype=torch.float64)} for row in ([0.6, 0.8], [huge, 0])
    ]
    rows = _by_class(sent, rule="norm_clip")["rows"]
    torch.testing.assert_close(rows, torch.tensor([[0.8, 0.4]], dtype=torch.float64))  # ((0.6, 0.8) + (1, 0)) / 2


def test_norm_clip_shortens_long_rows_only() -> None:
    sent = [_rows([3], [3.0, 4.0]), _rows([3], [30.0, 40.0]), _rows([3], [0.0, 0.0])]
    fixed = _by_class(sent, rule="norm_clip", clip=5.0)
    torch.testing.assert_close(fixed["rows"], torch.tensor([[2.0, 8 / 3]]))
    by_median = _by_class(sent, rule="norm_clip")  # the median norm is 5
    assert by_median["ids"].tolist() == [3]
    torch.testing.assert_close(by_median["rows"], torch.tensor([[2.0, 8 / 3]]))


def test_the_mean_is_the_mean_of_before() -> None:
    sent = [
        {"ids": torch.tensor([0, 4]), "rows": torch.randn(2, 7, generator=torch.Generator().manual_seed(i))}
        for i in range(5)
    ]
    for found, expected in zip(_by_class(sent).values(), mean_by_class(sent), strict=True):
        assert torch.equal(found, expected)
    networks = [{"w": payload["rows"]} for payload in sent]
    for sizes in (None, [1, 2, 3, 4, 5]):
        assert torch.equal(_networks(networks, networks[0], sizes=sizes)["w"], mean_payload(networks, sizes)["w"])


def test_the_quick_sums_of_the_mean_are_those_of_the_general_rule() -> None:
    sent = [_rows([0, 2], [0.5 + i, i], [i * i, -1.0]) for i in range(4)]
    general, quick = Rule(weighted_mean), rules.get("mean")
    for weights in (None, [1.0, 0.5, 0.25, 2.0]):
        expected = general.class_vectors(sent, weights, MEAN)
        found = quick.class_vectors(sent, weights, MEAN)
        assert found["ids"].tolist() == expected["ids"].tolist()
        torch.testing.assert_close(found["rows"], expected["rows"])
        networks = [{"w": payload["rows"]} for payload in sent]
        torch.testing.assert_close(
            quick.networks(networks, networks[0], weights, None, MEAN)["w"],
            general.networks(networks, networks[0], weights, None, MEAN)["w"],
        )


def test_stale_replies_weigh_less() -> None:
    sent = [_rows([0], [0.0]), _rows([0], [4.0])]
    assert _by_class(sent, [1.0, 1 / 3])["rows"].tolist() == [[1.0]]
    networks = [{"w": torch.tensor([0.0])}, {"w": torch.tensor([4.0])}]
    assert _networks(networks, networks[0], weights=[1.0, 1 / 3])["w"].item() == pytest.approx(1.0)
    assert _networks(networks, networks[0], sizes=[3, 1], weights=[1.0, 1.0])["w"].item() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("values", "weights", "median"),
    [
        ([5.0, 1.0, 3.0], [1, 1, 1], 3.0),
        ([5.0, 1.0, 3.0, 2.0], [1, 1, 1, 1], 2.5),
        ([7.0], [0.2], 7.0),
        ([1.0, 2.0, 10.0], [1, 1, 5], 10.0),
        ([1.0, 2.0, 10.0], [2, 1, 1], 1.5),
        ([1.0, 2.0, 3.0], [0.1, 0.1, 0.1], 2.0),
    ],
)
def test_weighted_median(values: list[float], weights: list[float], median: float) -> None:
    assert weighted_median(_column(*values), torch.tensor(weights, dtype=torch.float64), MEAN).item() == median


def test_trimmed_mean_cuts_both_ends_of_each_coordinate() -> None:
    values = torch.tensor([[1.0, 50.0], [2.0, 40.0], [3.0, 30.0], [4.0, 20.0], [1e30, -1e30]], dtype=torch.float64)
    settings = Aggregation(rule="trimmed_mean", trim=0.2)
    assert trimmed_mean(values, torch.ones(5, dtype=torch.float64), settings).tolist() == [3.0, 30.0]


def test_parameters_by_rule() -> None:
    start = {"a": torch.tensor([[1.0, 1.0]]), "b": torch.tensor([0.0])}
    sent = [
        {"a": torch.tensor([[1.0, 4.0]]), "b": torch.tensor([4.0])},  # moved by (0, 3, 4): norm 5
        {"a": torch.tensor([[1.0, 1.0]]), "b": torch.tensor([1.0])},  # norm 1
        {"a": torch.tensor([[1.0, 301.0]]), "b": torch.tensor([400.0])},  # norm 500
    ]
    median = _networks(sent, start, rule="median", sizes=[1, 1, 10**9])
    assert (median["a"].tolist(), median["b"].tolist()) == ([[1.0, 4.0]], [4.0])
    clipped = _networks(sent, start, rule="norm_clip", clip=5.0, sizes=[1, 1, 10**9])
    torch.testing.assert_close(clipped["a"], torch.tensor([[1.0, 3.0]]))
    torch.testing.assert_close(clipped["b"], torch.tensor([3.0]))
    assert list(clipped) == ["a", "b"]


def test_the_setting() -> None:
    assert Experiment(aggregation="median").aggregation.rule == "median"
    assert Experiment(**overlay({"aggregation": "trimmed_mean"}, {"aggregation.trim": 0.3})).aggregation.trim == 0.3
    experiment = Experiment(aggregation={"rule": "norm_clip", "clip": 2})
    assert Experiment.from_toml(experiment.to_toml()) == experiment
    assert Experiment(aggregation="mean").fingerprint == Experiment().fingerprint
    for wrong in ("krum", {"rule": "median", "trim": 0.5}, {"rule": "norm_clip", "clip": 0}, {"rulle": "mean"}, 3):
        with pytest.raises(SettingError, match="aggregation"):
            Experiment(aggregation=wrong)


@pytest.mark.parametrize("whole_update", [False, True])
@pytest.mark.parametrize(
    ("combine", "found"),
    [(lambda v, w, s: v, r"a tensor of shape \(3, \d\)"), (lambda v, w, s: v[0].tolist(), "a list")],
)
def test_what_a_rule_of_ones_own_returns_is_checked(combine: Any, found: str, whole_update: bool) -> None:
    rule, given = Rule(combine, whole_update), Aggregation()
    sent = [_rows([0], [1.0, n]) for n in (1.0, 2.0, 3.0)]
    with pytest.raises(SettingError, match=rf"^aggregation.rule: 'mean' returned {found}; expected one row"):
        rule.class_vectors(sent, None, given)
    networks = [{"weight": payload["rows"][0]} for payload in sent]
    with pytest.raises(SettingError, match=rf"^aggregation.rule: 'mean' returned {found}; expected one row"):
        rule.networks(networks, networks[0], None, None, given)
