"""Robust aggregation: exact numbers, the mean untouched, attackers without effect, every method through it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedl2g.errors import SettingError
from fedl2g.experiment import Experiment, overlay
from fedl2g.experiment.policies import Aggregation
from fedl2g.learning.client import Task
from fedl2g.methods.base import Reply, Report, ServerHalf
from fedl2g.methods.low_rank import reconstruct
from fedl2g.methods.registry import get_method
from fedl2g.methods.shared_network import SharedNetwork
from fedl2g.payload import Payload, mean_by_class, mean_payload
from fedl2g.round.rules import combine_by_class, combine_payloads, trimmed_mean, weighted_median


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
    ids, rows = combine_by_class(SENT, settings=Aggregation(**settings))
    assert ids.tolist() == [0, 1, 2]
    assert rows.tolist() == [first, [5.0, 5.0], [-1.0, 7.0]]


@pytest.mark.parametrize("huge", [1e30, 1e200])
def test_of_two_senders_the_longer_does_not_set_the_bound(huge: float) -> None:
    sent = [
        {"ids": torch.tensor([0]), "rows": torch.tensor([row], dtype=torch.float64)} for row in ([0.6, 0.8], [huge, 0])
    ]
    _, rows = combine_by_class(sent, settings=Aggregation(rule="norm_clip"))
    torch.testing.assert_close(rows, torch.tensor([[0.8, 0.4]], dtype=torch.float64))  # ((0.6, 0.8) + (1, 0)) / 2


def test_norm_clip_shortens_long_rows_only() -> None:
    sent = [_rows([3], [3.0, 4.0]), _rows([3], [30.0, 40.0]), _rows([3], [0.0, 0.0])]
    fixed = combine_by_class(sent, settings=Aggregation(rule="norm_clip", clip=5.0))[1]
    torch.testing.assert_close(fixed, torch.tensor([[2.0, 8 / 3]]))
    ids, rows = combine_by_class(sent, settings=Aggregation(rule="norm_clip"))  # the median norm is 5
    assert ids.tolist() == [3]
    torch.testing.assert_close(rows, torch.tensor([[2.0, 8 / 3]]))


def test_the_mean_is_the_mean_of_before() -> None:
    sent = [
        {"ids": torch.tensor([0, 4]), "rows": torch.randn(2, 7, generator=torch.Generator().manual_seed(i))}
        for i in range(5)
    ]
    for found, expected in zip(combine_by_class(sent), mean_by_class(sent), strict=True):
        assert torch.equal(found, expected)
    networks = [{"w": payload["rows"]} for payload in sent]
    for sizes in (None, [1, 2, 3, 4, 5]):
        assert torch.equal(
            combine_payloads(networks, networks[0], sizes=sizes)["w"], mean_payload(networks, sizes)["w"]
        )


def test_stale_replies_weigh_less() -> None:
    sent = [_rows([0], [0.0]), _rows([0], [4.0])]
    assert combine_by_class(sent, [1.0, 1 / 3])[1].tolist() == [[1.0]]
    networks = [{"w": torch.tensor([0.0])}, {"w": torch.tensor([4.0])}]
    assert combine_payloads(networks, networks[0], weights=[1.0, 1 / 3])["w"].item() == pytest.approx(1.0)
    assert combine_payloads(networks, networks[0], sizes=[3, 1], weights=[1.0, 1.0])["w"].item() == pytest.approx(1.0)


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
    assert weighted_median(_column(*values), torch.tensor(weights, dtype=torch.float64)).item() == median


def test_trimmed_mean_cuts_both_ends_of_each_coordinate() -> None:
    values = torch.tensor([[1.0, 50.0], [2.0, 40.0], [3.0, 30.0], [4.0, 20.0], [1e30, -1e30]], dtype=torch.float64)
    assert trimmed_mean(values, torch.ones(5, dtype=torch.float64), 0.2).tolist() == [3.0, 30.0]


def test_parameters_by_rule() -> None:
    start = {"a": torch.tensor([[1.0, 1.0]]), "b": torch.tensor([0.0])}
    sent = [
        {"a": torch.tensor([[1.0, 4.0]]), "b": torch.tensor([4.0])},  # moved by (0, 3, 4): norm 5
        {"a": torch.tensor([[1.0, 1.0]]), "b": torch.tensor([1.0])},  # norm 1
        {"a": torch.tensor([[1.0, 301.0]]), "b": torch.tensor([400.0])},  # norm 500
    ]
    median = combine_payloads(sent, start, settings=Aggregation(rule="median"), sizes=[1, 1, 10**9])
    assert (median["a"].tolist(), median["b"].tolist()) == ([[1.0, 4.0]], [4.0])
    clipped = combine_payloads(sent, start, settings=Aggregation(rule="norm_clip", clip=5.0), sizes=[1, 1, 10**9])
    torch.testing.assert_close(clipped["a"], torch.tensor([[1.0, 3.0]]))
    torch.testing.assert_close(clipped["b"], torch.tensor([3.0]))
    assert list(clipped) == ["a", "b"]


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "norm_clip"])
@pytest.mark.parametrize(
    "method", ["lg-fedavg", "fedgh", "fml", "fedkd", "fedmrl", "feddistill", "fedproto", "fedl2g-f"]
)
def test_one_attacker_cannot_steer_a_robust_server(method: str, rule: str) -> None:
    """Three honest clients and a huge upload: the robust server ends up near the honest ones, the mean does not."""
    distances = {}
    for name in ("mean", rule):
        server = _server(method, Aggregation(rule=name, trim=0.25))  # type: ignore[arg-type]
        alone = _server(method, Aggregation())
        honest = [Reply(c, _upload(server, c), Report(10)) for c in range(3)]
        hostile = Reply(
            3, {k: t * 1e4 if t.is_floating_point() else t for k, t in _upload(server, 3).items()}, Report(10)
        )
        alone.aggregate(1, honest)
        server.aggregate(1, [*honest, hostile])
        reference = alone.state_dict()
        distances[name] = max(
            float((t.double() - reference[k].double()).abs().max())
            for k, t in server.state_dict().items()
            if t.is_floating_point() and k != "distance"
        )
    assert distances[rule] < distances["mean"] / 10


def test_a_late_reply_weighs_less_in_the_training_of_fedgh_and_changes_nothing_else() -> None:
    """One batch over all features: a step against the mean of the weighted gradients."""
    server = _server("fedgh", Aggregation(), server_batch_size=100)
    head = deepcopy(server.shared.network)
    replies = [Reply(c, _upload(server, c), Report(10), weight=0.25 if c == 2 else 1.0) for c in range(3)]
    total = sum(r.weight * F.cross_entropy(head(r.payload["rows"]), r.payload["ids"], reduction="sum") for r in replies)
    (total / 9).backward()
    server.aggregate(1, replies)
    for moved, before in zip(server.shared.network.parameters(), head.parameters(), strict=True):
        torch.testing.assert_close(moved, before - 0.01 * before.grad)


def test_norm_clip_measures_fedkd_from_what_its_clients_received() -> None:
    """A client that sends back what it got has not moved, however much the factors left out."""
    server = _server("fedkd", Aggregation(rule="norm_clip", clip=1e-9), energy_start=0.5, energy_end=0.5)
    received = server.broadcast(1)
    kept = server.shared.pack()
    server.aggregate(1, [Reply(0, received, Report(10))])
    now, expected = server.shared.pack(), reconstruct(received, server.expected())
    assert all(torch.equal(now[name], expected[name]) for name in now)
    assert any(not torch.allclose(now[name], kept[name]) for name in now)


def _server(method: str, aggregation: Aggregation, **settings: Any) -> ServerHalf[Any]:
    known = get_method(method)
    task = Task(
        classes=3,
        image_shape=(1, 16, 16),
        seed=1,
        rounds=5,
        auxiliary="small_cnn",
        feature_dim=8,
        aggregation=aggregation,
    )
    options = {"server_lr": 1.0} if method == "fedl2g-f" else {}
    return known.server(known.options.model_validate({"name": method, **options, **settings}), task)


def _upload(server: ServerHalf[Any], client: int) -> Payload:
    expected = server.expected()
    generator = torch.Generator().manual_seed(client)
    sizes = {name: tuple(3 if s == "k" else int(s) for s in spec.shape) for name, spec in expected.items()}
    return {
        name: torch.arange(3) if spec.below else 0.1 * torch.randn(sizes[name], generator=generator)
        for name, spec in expected.items()
    }


def test_the_setting() -> None:
    assert Experiment(aggregation="median").aggregation.rule == "median"
    assert Experiment(**overlay({"aggregation": "trimmed_mean"}, {"aggregation.trim": 0.3})).aggregation.trim == 0.3
    experiment = Experiment(aggregation={"rule": "norm_clip", "clip": 2})
    assert Experiment.from_toml(experiment.to_toml()) == experiment
    assert "aggregation" not in Experiment(aggregation="mean").to_toml()
    assert Experiment(aggregation="mean").fingerprint == Experiment().fingerprint
    for wrong in ("krum", {"rule": "median", "trim": 0.5}, {"rule": "norm_clip", "clip": 0}, {"rulle": "mean"}, 3):
        with pytest.raises(SettingError, match="aggregation"):
            Experiment(aggregation=wrong)


def test_a_negative_variance_does_no_harm() -> None:
    network = SharedNetwork(torch.nn.BatchNorm1d(2))
    network.load({**network.pack(), "running_var": torch.tensor([-3.0, 2.0])})
    assert network.pack()["running_var"].tolist() == [0.0, 2.0]
    network.network.eval()
    assert torch.isfinite(network.network(torch.ones(1, 2))).all()
