"""The aggregator: every method through every rule, who is weighed how, and what a method gets to see."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from fedl2g.errors import SettingError
from fedl2g.experiment import Experiment
from fedl2g.methods.base import ClientHalf, Combined, Options, Reply, Report, ServerHalf, Traits
from fedl2g.methods.low_rank import reconstruct
from fedl2g.methods.registry import Method
from fedl2g.payload import Payload, Specification, class_vector_spec
from fedl2g.round.aggregator import Aggregator
from fedl2g.round.policies import make_policies
from puppets import Puppets, number_and_round, puppet_federation, server_of


def _world(method: str, aggregation: Any = "mean", **settings: Any) -> tuple[ServerHalf[Any], Aggregator]:
    options = {"server_lr": 1.0, "warmup_rounds": 0} if method == "fedl2g-f" else {}
    experiment = Experiment(
        method={"name": method, **options, **settings}, models="small_cnn", aggregation=aggregation, seed=1, rounds=5
    )
    server = server_of(experiment, classes=3)
    engine = Puppets(experiment, server, number_and_round)
    return server, make_policies(experiment, server, engine).aggregator  # type: ignore[arg-type]


def _upload(server: ServerHalf[Any], client: int) -> Payload:
    expected = server.expected()
    generator = torch.Generator().manual_seed(client)
    sizes = {name: tuple(3 if s == "k" else int(s) for s in spec.shape) for name, spec in expected.items()}
    return {
        name: torch.arange(3) if spec.below else 0.1 * torch.randn(sizes[name], generator=generator)
        for name, spec in expected.items()
    }


def _round(server: ServerHalf[Any], aggregator: Aggregator, replies: list[Reply]) -> None:
    combined = aggregator.combine(1, replies, server.broadcast(1))
    assert combined is not None
    server.update(1, combined)


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "norm_clip"])
@pytest.mark.parametrize(
    "method", ["lg-fedavg", "fedgh", "fml", "fedkd", "fedmrl", "feddistill", "fedproto", "fedtgp", "fedl2g-f"]
)
def test_one_attacker_cannot_steer_a_robust_server(method: str, rule: str) -> None:
    """Three honest clients and a huge upload: the robust server ends up near the honest ones, the mean does not."""
    distances = {}
    for name in ("mean", rule):
        server, aggregator = _world(method, {"rule": name, "trim": 0.25})
        alone, plain = _world(method)
        honest = [Reply(c, _upload(server, c), Report(10)) for c in range(3)]
        hostile = Reply(
            3, {k: t * 1e4 if t.is_floating_point() else t for k, t in _upload(server, 3).items()}, Report(10)
        )
        _round(alone, plain, honest)
        _round(server, aggregator, [*honest, hostile])
        reference = alone.state_dict()
        distances[name] = max(
            float((t.double() - reference[k].double()).abs().max())
            for k, t in server.state_dict().items()
            if t.is_floating_point() and k != "distance"
        )
    assert distances[rule] < distances["mean"] / 10


def test_a_late_reply_weighs_less_in_the_training_of_fedgh_and_changes_nothing_else() -> None:
    """One batch over all features: a step against the mean of the weighted gradients."""
    server, aggregator = _world("fedgh", server_batch_size=100)
    head = deepcopy(server.shared.network)
    replies = [Reply(c, _upload(server, c), Report(10), weight=0.25 if c == 2 else 1.0) for c in range(3)]
    total = sum(r.weight * F.cross_entropy(head(r.payload["rows"]), r.payload["ids"], reduction="sum") for r in replies)
    (total / 9).backward()
    _round(server, aggregator, replies)
    for moved, before in zip(server.shared.network.parameters(), head.parameters(), strict=True):
        torch.testing.assert_close(moved, before - 0.01 * before.grad)


@pytest.mark.parametrize(("method", "weighted"), [("lg-fedavg", True), ("fml", False), ("fedmrl", False)])
def test_sizes_count_where_the_traits_say_so(method: str, weighted: bool) -> None:
    """One client with three times the samples of the other: three quarters of the mean, or a half."""
    server, aggregator = _world(method)
    assert aggregator.traits.weighted_by_samples == weighted
    one, other = _upload(server, 0), _upload(server, 1)
    combined = aggregator.combine(1, [Reply(0, one, Report(30)), Reply(1, other, Report(10))], server.broadcast(1))
    assert combined is not None
    share = 0.75 if weighted else 0.5
    for name, tensor in combined.payload.items():
        torch.testing.assert_close(tensor, share * one[name] + (1 - share) * other[name])


def test_norm_clip_measures_fedkd_from_what_its_clients_received() -> None:
    """A client that sends back what it got has not moved, however much the factors left out."""
    clip = {"rule": "norm_clip", "clip": 1e-9}
    server, aggregator = _world("fedkd", clip, energy_start=0.5, energy_end=0.5)
    received = server.broadcast(1)
    kept = server.shared.pack()
    _round(server, aggregator, [Reply(0, received, Report(10))])
    now, expected = server.shared.pack(), reconstruct(received, server.expected())
    assert all(torch.equal(now[name], expected[name]) for name in now)
    assert any(not torch.allclose(now[name], kept[name]) for name in now)


def test_there_is_nothing_to_combine_without_replies_and_without_uploads() -> None:
    server, aggregator = _world("feddistill")
    assert aggregator.combine(1, [], server.broadcast(1)) is None
    server, aggregator = _world("local")
    assert aggregator.combine(1, [Reply(0, {}, Report(5))], {}) is None


class RawServer(ServerHalf[Options]):
    """Keeps what it is given."""

    def __init__(self, options: Options, task: Any) -> None:
        super().__init__(options, task)
        self.seen: list[Combined] = []

    def expected(self) -> Specification:
        return class_vector_spec(self.task.classes, 2, self.task.dtype)

    def update(self, round: int, combined: Combined) -> None:
        self.seen.append(combined)


RAW = Method("raw", Options, RawServer, ClientHalf, Traits(raw_replies=True))
NAME = "test_round_aggregator:RAW"


def _raw(**settings: Any) -> list[Combined]:
    experiment = Experiment(method=NAME, clients=6, rounds=4, evaluate_every=100, **settings)
    federation, _ = puppet_federation(experiment)
    federation.run()
    assert isinstance(federation.server, RawServer)
    return federation.server.seen


def test_a_method_that_asks_for_raw_replies_gets_them_ordered_by_client() -> None:
    seen = _raw()
    assert len(seen) == 4
    for round, combined in enumerate(seen, 1):
        assert combined.payload == {}
        assert [reply.client for reply in combined.replies] == list(range(6))  # the puppets answer in another order
        for reply in combined.replies:
            assert reply.payload["rows"].tolist() == [[reply.client, round]]
            assert reply.weight == 1.0


def test_late_replies_are_among_the_raw_ones_with_their_weight() -> None:
    late = {"speed_spread": 0.8, "deadline": 1.0, "late": "use", "staleness_power": 1.0}
    found = [(round, reply) for round, combined in enumerate(_raw(availability=late), 1) for reply in combined.replies]
    delays = {round - int(reply.payload["rows"][0, 1]) for round, reply in found}
    assert delays > {0}
    for round, reply in found:
        assert reply.weight == 1 / (1 + round - int(reply.payload["rows"][0, 1]))


def test_no_rule_and_no_dense_form_is_applied_to_raw_replies() -> None:
    with pytest.raises(SettingError, match="reads individual replies, so median would not be applied"):
        Experiment(method=NAME, aggregation="median")
    with pytest.raises(SettingError, match=r"privacy\.dense_uploads"):
        Experiment(method=NAME, privacy={"dense_uploads": True})


def test_no_guarantee_is_given_for_raw_replies() -> None:
    for noise in ("server", "client"):
        with pytest.raises(SettingError, match="reads individual replies, so one client"):
            Experiment(method=NAME, privacy={"clip": 1.0, "noise_multiplier": 1.0, "noise": noise})


@pytest.mark.parametrize("method", ["feddistill", "fedgh", "fedtgp", "fml", "fedkd"])
@pytest.mark.parametrize("rule", ["mean", "median", "trimmed_mean", "norm_clip"])
def test_a_rule_hands_over_no_replies(method: str, rule: str) -> None:
    server, aggregator = _world(method, rule)
    replies = [Reply(c, _upload(server, c), Report(10)) for c in range(3)]
    combined = aggregator.combine(1, replies, server.broadcast(1))
    assert combined is not None
    assert combined.replies == ()
