"""The mechanism of the guarantee in exact numbers: what the server makes of clipped uploads, and where noise goes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedl2g.experiment import Experiment
from fedl2g.methods.base import Reply, Report
from fedl2g.methods.registry import get_method
from fedl2g.payload import Payload, check_payload
from fedl2g.privacy.mechanism import Mechanism
from fedl2g.privacy.noise_key import KEY_VARIABLE
from fedl2g.rng import torch_stream
from fedl2g.round.aggregator import Private
from fedl2g.uploads.dense import Dense
from fedl2g.uploads.protection import Protect
from fedl2g.uploads.stage import Upload
from puppets import server_of

CLASSES = 3


class KnownNoise(Mechanism):
    """Noise that a test can compute too, to see where it goes and how often; of the right size."""

    def noise_for(self, vector: torch.Tensor, purpose: str, *ids: int) -> torch.Tensor:
        return self.std * _draw(len(vector), purpose, *ids)


def _draw(shape: int, purpose: str, *ids: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch_stream(5, purpose, *ids), dtype=torch.float64)


class World:
    """The mechanism on both sides of the wire, for one method."""

    def __init__(self, method: str = "feddistill", *, kind: type[Mechanism] = KnownNoise, **privacy: Any) -> None:
        experiment = Experiment(
            method=method, models="small_cnn", clients=10, participation=0.5, rounds=20, seed=5, privacy=privacy
        )
        mechanism = kind.of(experiment)
        dense = Dense.of(experiment.privacy, CLASSES)
        assert mechanism is not None
        assert dense is not None
        server = server_of(experiment, classes=CLASSES)
        self.mechanism, self.dense = mechanism, dense
        self.aggregator = Private(mechanism, get_method(method).traits, server.expected(), dense)

    def protect(self, payload: Payload, received: Payload | None = None, client: int = 0, round: int = 1) -> Payload:
        packed = self.dense.pack(payload)
        upload = Upload(client, round, packed, Report(5), received or {}, lambda given: given)
        sent = Protect(self.mechanism).apply(upload).payload
        if received is None:
            check_payload(sent, self.aggregator.arriving)
        return sent

    def combine(self, round: int, *payloads: Payload, broadcast: Payload | None = None) -> Payload | None:
        replies = [Reply(client, payload, Report(1)) for client, payload in enumerate(payloads)]
        combined = self.aggregator.combine(round, replies, broadcast or {})
        if combined is None:
            return None
        assert combined.replies == ()
        return combined.payload


def test_the_server_divides_the_noisy_sum_by_a_fixed_number() -> None:
    world = World(clip=1.0, noise_multiplier=0.5)
    honest = world.protect({"ids": torch.tensor([1]), "rows": torch.tensor([[1.0, 2.0, 2.0]])})
    liar = {"ids": torch.arange(3), "rows": torch.full((3, 3), 1e6)}
    check_payload(liar, world.aggregator.arriving)
    combined = world.combine(4, honest, liar)
    assert combined is not None
    total = torch.full((9,), 1 / 3, dtype=torch.float64)  # the liar is clipped to norm 1
    total[3:6] += torch.tensor([1.0, 2.0, 2.0]) / 3
    expected = (total + 0.5 * _draw(9, "privacy_server", 4)) / (0.5 * 10)
    assert combined["ids"].tolist() == [0, 1, 2]
    torch.testing.assert_close(combined["rows"].flatten().double(), expected, atol=1e-6, rtol=0)


def test_sizes_and_weights_of_replies_count_for_nothing() -> None:
    world = World(clip=1.0, noise_multiplier=0.5)
    sent = [world.protect({"ids": torch.tensor([c]), "rows": torch.ones(1, 3)}) for c in range(3)]
    plain = [Reply(c, payload, Report(1)) for c, payload in enumerate(sent)]
    claiming = [Reply(c, payload, Report(10**9 * c), weight=0.1) for c, payload in enumerate(sent)]
    one, other = (world.aggregator.combine(4, replies, {}) for replies in (plain, claiming))
    assert one is not None
    assert other is not None
    assert torch.equal(one.payload["rows"], other.payload["rows"])


def test_a_round_without_participants_releases_noise_alone() -> None:
    combined = World(clip=1.0, noise_multiplier=0.5).combine(2)
    assert combined is not None
    expected = 0.5 * _draw(9, "privacy_server", 2) / 5
    torch.testing.assert_close(combined["rows"].flatten().double(), expected, atol=1e-6, rtol=0)
    assert World(clip=1.0, noise_multiplier=0.5, noise="client").combine(2) is None


def test_with_noise_on_the_clients_the_server_adds_none() -> None:
    world = World(clip=1.0, noise_multiplier=0.5, noise="client")
    sent = [world.protect({"ids": torch.tensor([c]), "rows": torch.ones(1, 3)}, None, c, 6) for c in range(2)]
    combined = world.combine(6, *sent)
    assert combined is not None
    total = sum(0.5 * _draw(9, "privacy_client", c, 6) for c in range(2))
    for client in range(2):
        total[3 * client : 3 * client + 3] += 3**-0.5
    torch.testing.assert_close(combined["rows"].flatten().double(), total / 5, atol=1e-5, rtol=0)


def test_counted_classes_are_means_and_rare_ones_are_left_out() -> None:
    world = World(kind=Mechanism, clip=100.0, noise_multiplier=1e-4, denominator="counted")
    sent = [{"ids": torch.tensor([0]), "rows": torch.tensor([[float(c), 0.0, 1.0]])} for c in range(3)]
    sent.append({"ids": torch.tensor([2]), "rows": torch.ones(1, 3)})
    combined = world.combine(1, *(world.protect(payload, None, c) for c, payload in enumerate(sent)))
    assert combined is not None
    assert combined["ids"].tolist() == [0, 2]
    expected = torch.tensor([[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
    torch.testing.assert_close(combined["rows"], expected, atol=0.1, rtol=0)


@pytest.mark.parametrize(("noise", "deviations"), [("server", 1.0), ("client", 2.0)])
def test_a_count_below_three_deviations_of_its_noise_may_be_nobody(noise: str, deviations: float) -> None:
    """Of four clients' noise the deviation is twice that of one."""
    world = World(clip=1.0, noise_multiplier=0.5, denominator="counted", count_weight=0.5, noise=noise)
    threshold = 3 * deviations * 0.5 / 0.5
    quiet = {"ids": torch.arange(3), "rows": torch.zeros(3, 3), "present": torch.zeros(3)}
    found = []
    for count in (threshold * 0.99, threshold * 1.01):
        loud = {**quiet, "present": torch.tensor([0.0, count, 0.0])}
        silent = type("Silent", (Mechanism,), {"noise_for": lambda *_: 0.0, "clipped": lambda _, vector: vector})
        m = world.mechanism
        silenced = silent(m.settings, m.clients, m.participation, m.rounds, m.seed)
        aggregator = Private(silenced, world.aggregator.traits, world.aggregator.expected, world.dense)
        replies = [Reply(c, loud if c == 0 else quiet, Report(1)) for c in range(4)]
        combined = aggregator.combine(1, replies, {})
        assert combined is not None
        found.append(combined.payload["ids"].tolist())
    assert found == [[], [1]]


def test_networks_move_by_the_noisy_sum_of_changes() -> None:
    world = World("fml", clip=5.0, noise_multiplier=0.1)
    start = {"a": torch.tensor([1.0, 1.0]), "b": torch.tensor([0.0])}
    moved = {"a": torch.tensor([1.0, 7.0]), "b": torch.tensor([8.0])}  # by 10: half of it is left
    sent = world.protect(moved, start)
    combined = world.combine(3, sent, broadcast=start)
    assert combined is not None
    noise = 0.5 * _draw(3, "privacy_server", 3)
    change = (torch.tensor([0.0, 3.0, 4.0], dtype=torch.float64) + noise) / 5
    expected = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64) + change
    found = torch.cat([combined["a"], combined["b"]]).double()
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_a_vector_is_undone() -> None:
    world = World(clip=1.0, noise_multiplier=1.0, denominator="counted", count_weight=0.5)
    payload = {"ids": torch.arange(2), "rows": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "present": torch.ones(2)}
    vector = world.mechanism.vector(payload, {})
    assert vector.tolist() == [0.5, 0.5, 1.0, 2.0, 3.0, 4.0]
    undone = world.mechanism.payload(vector, payload, {})
    assert all(torch.equal(undone[name], payload[name]) for name in payload)
    start = {"w": torch.tensor([1.0, 2.0])}
    assert world.mechanism.vector({"w": torch.tensor([1.5, 4.0])}, start).tolist() == [0.5, 2.0]


def test_the_noise_has_more_than_32_bits_of_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's generator takes 32 bits of a seed: whoever tries them all takes the noise off."""
    seeds = []
    real = np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda seed: seeds.append(seed) or real(seed))
    world = World(kind=Mechanism, clip=1.0, noise_multiplier=1.0)
    for key in ("a secret", "another"):
        monkeypatch.setenv(KEY_VARIABLE, key)
        world.mechanism.noise_for(torch.zeros(4, dtype=torch.float64), "privacy_client", 0, 1)
    assert all(seed.bit_length() > 128 for seed in seeds)
    apart = [real(seed).standard_normal(3).tolist() for seed in (seeds[0], seeds[0] ^ 1 << 300)]
    assert apart[0] != apart[1]
    assert seeds[0] != seeds[1]
