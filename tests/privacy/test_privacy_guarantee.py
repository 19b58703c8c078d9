"""Differential privacy of uploads: the mechanism in exact numbers, the accountant, and what a run records."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fedl2g.round.accounting import epsilon_spent, solve_noise_multiplier
from fedl2g.uploads.mechanism import KEY_VARIABLE, Protection, sparse
from scipy.stats import norm

import fedl2g
from fedl2g.errors import PayloadError, SettingError
from fedl2g.experiment import Experiment
from fedl2g.experiment.policies import Noise, Privacy
from fedl2g.learning.client import Task
from fedl2g.methods.base import Reply, Report, ServerHalf
from fedl2g.methods.registry import get_method
from fedl2g.payload import Payload
from fedl2g.rng import torch_stream
from fedl2g.runs.directory import RunDirectory
from fedl2g.uploads.noise import add_noise

CLASSES = 3
SENT: Payload = {"ids": torch.tensor([0, 2]), "rows": torch.tensor([[3.0, 0.0], [0.0, 4.0]])}


def _protection(clients: int = 10, participation: float = 0.5, rounds: int = 20, **settings: Any) -> Protection:
    return Protection(Privacy(**settings), clients, participation, rounds, seed=5)


def _draw(shape: int, purpose: str, *ids: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch_stream(5, purpose, *ids), dtype=torch.float64)


@pytest.fixture
def known_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise that a test can compute too, to see where it goes and how often; of the right size."""
    monkeypatch.setattr(
        Protection,
        "_noise_for",
        lambda self, vector, purpose, *ids: self._std * _draw(len(vector), purpose, *ids),
    )


def test_a_whole_upload_is_clipped() -> None:
    sent = _protection(clip=1.0, noise_multiplier=1.0).protect(SENT, {}, CLASSES, 0, 1)
    torch.testing.assert_close(sent["rows"], torch.tensor([[0.6, 0.0], [0.0, 0.0], [0.0, 0.8]]))
    assert set(sent) == {"ids", "rows"}
    assert float(sent["rows"].double().norm()) < 1.0
    short = _protection(clip=100.0, noise_multiplier=1.0).protect(SENT, {}, CLASSES, 0, 1)
    assert torch.equal(short["rows"][[0, 2]], SENT["rows"])


def test_the_count_is_part_of_the_clipped_vector() -> None:
    sent = _protection(clip=1.0, noise_multiplier=1.0, denominator="counted", count_weight=2.0).protect(
        SENT, {}, CLASSES, 0, 1
    )
    length = math.sqrt(9 + 16 + 2 * 2.0**2)
    torch.testing.assert_close(sent["present"], torch.tensor([1 / length, 0.0, 1 / length]))
    whole = torch.cat([sent["rows"].double().flatten(), 2.0 * sent["present"].double()])
    assert float(whole.norm()) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.usefixtures("known_noise")
def test_noise_on_the_client() -> None:
    sent = _protection(clip=1.0, noise_multiplier=0.5, noise="client").protect(SENT, {}, CLASSES, client=3, round=7)
    clean = torch.tensor([0.6, 0.0, 0.0, 0.0, 0.0, 0.8], dtype=torch.float64)
    expected = clean + 0.5 * _draw(6, "privacy_client", 3, 7)
    torch.testing.assert_close(sent["rows"].flatten().double(), expected, atol=1e-5, rtol=0)


@pytest.mark.usefixtures("known_noise")
def test_the_server_divides_the_noisy_sum_by_a_fixed_number() -> None:
    protection = _protection(clip=1.0, noise_multiplier=0.5)
    server = _server("feddistill", protection)
    honest = protection.protect({"ids": torch.tensor([1]), "rows": torch.tensor([[1.0, 2.0, 2.0]])}, {}, CLASSES, 0, 1)
    liar = {"ids": torch.arange(3), "rows": torch.full((3, 3), 1e6)}
    for payload in (honest, liar):
        server.check(payload)
    ids, rows = server.combine_by_class(4, [Reply(0, honest, Report(1)), Reply(1, liar, Report(10**9))])
    total = torch.full((9,), 1 / 3, dtype=torch.float64)  # the liar is clipped to norm 1
    total[3:6] += torch.tensor([1.0, 2.0, 2.0]) / 3
    expected = (total + 0.5 * _draw(9, "privacy_server", 4)) / (0.5 * 10)
    assert ids.tolist() == [0, 1, 2]
    torch.testing.assert_close(rows.flatten().double(), expected, atol=1e-6, rtol=0)


@pytest.mark.usefixtures("known_noise")
def test_a_round_without_participants_releases_noise_alone() -> None:
    server = _server("feddistill", _protection(clip=1.0, noise_multiplier=0.5))
    _, rows = server.combine_by_class(2, [])
    torch.testing.assert_close(rows.flatten().double(), 0.5 * _draw(9, "privacy_server", 2) / 5, atol=1e-6, rtol=0)


def test_counted_classes_are_means_and_rare_ones_are_left_out() -> None:
    protection = _protection(clip=100.0, noise_multiplier=1e-4, denominator="counted")
    server = _server("feddistill", protection)
    sent = [{"ids": torch.tensor([0]), "rows": torch.tensor([[float(c), 0.0, 1.0]])} for c in range(3)]
    sent.append({"ids": torch.tensor([2]), "rows": torch.ones(1, 3)})
    replies = [Reply(c, protection.protect(p, {}, CLASSES, c, 1), Report(1)) for c, p in enumerate(sent)]
    for reply in replies:
        server.check(reply.payload)
    ids, rows = server.combine_by_class(1, replies)
    assert ids.tolist() == [0, 2]
    torch.testing.assert_close(rows, torch.tensor([[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]]), atol=0.1, rtol=0)


@pytest.mark.usefixtures("known_noise")
def test_networks_move_by_the_noisy_sum_of_changes() -> None:
    protection = _protection(clip=5.0, noise_multiplier=0.1)
    start = {"a": torch.tensor([1.0, 1.0]), "b": torch.tensor([0.0])}
    moved = {"a": torch.tensor([1.0, 7.0]), "b": torch.tensor([8.0])}  # by 10: half of it is left
    sent = protection.protect(moved, start, CLASSES, 0, 1)
    torch.testing.assert_close(sent["a"], torch.tensor([1.0, 4.0]), atol=1e-4, rtol=0)
    combined = protection.combine([sent], start, round=3)
    noise = 0.5 * _draw(3, "privacy_server", 3)
    change = (torch.tensor([0.0, 3.0, 4.0], dtype=torch.float64) + noise) / 5
    expected = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64) + change
    found = torch.cat([combined["a"], combined["b"]]).double()
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_poisson_sampling() -> None:
    protection = _protection(clients=50, participation=0.3, clip=1.0, noise_multiplier=1.0)
    counts = [len(protection.participants(round)) for round in range(1, 201)]
    assert 14 < sum(counts) / 200 < 16
    assert len(set(counts)) > 5  # not a fixed number
    assert protection.participants(3) == protection.participants(3) != protection.participants(4)


def test_a_key_changes_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever knows the seed, but not the key, cannot take the noise off again."""
    protection = _protection(clip=1.0, noise_multiplier=1.0, noise="client")
    open_, again = (protection.protect(SENT, {}, CLASSES, 0, 1)["rows"] for _ in range(2))
    monkeypatch.setenv(KEY_VARIABLE, "a secret")
    assert torch.equal(open_, again)
    assert not torch.equal(open_, protection.protect(SENT, {}, CLASSES, 0, 1)["rows"])


def _uploaded_noise(values: torch.Tensor, protection: Protection, client: int = 0, round: int = 1) -> torch.Tensor:
    """What `protect` adds to one long row (clipped to norm 1) of a client."""
    sent = protection.protect({"ids": torch.tensor([0]), "rows": values[None]}, {}, 1, client, round)
    return (sent["rows"][0] - values / values.norm()).double()


def test_the_noise_is_gaussian_of_the_stated_deviation() -> None:
    protection = _protection(clip=1.0, noise_multiplier=0.5, noise="client")
    values = torch.randn(50_000, generator=torch.Generator().manual_seed(0))
    noise = _uploaded_noise(values, protection)
    assert float(noise.mean()) == pytest.approx(0, abs=0.01)
    assert float(noise.std()) == pytest.approx(0.5, rel=0.02)
    assert float((noise.abs() < 0.5).double().mean()) == pytest.approx(0.6827, abs=0.01)  # one deviation
    assert abs(float(torch.corrcoef(torch.stack([noise, values.double()]))[0, 1])) < 0.02


def test_no_two_vectors_share_their_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same round, under the same key: the difference of two uploads must not be bare."""
    monkeypatch.setenv(KEY_VARIABLE, "a secret")
    protection = _protection(clip=1.0, noise_multiplier=0.5, noise="client")
    one = torch.randn(20_000, generator=torch.Generator().manual_seed(0))
    other = one.clone()
    other[0] += 1e-3
    first, second = _uploaded_noise(one, protection), _uploaded_noise(other, protection)
    assert torch.equal(first, _uploaded_noise(one, protection))  # a replay repeats itself
    others = [second, _uploaded_noise(one, protection, client=1), _uploaded_noise(one, protection, round=2)]
    for noise in others:
        assert abs(float(torch.corrcoef(torch.stack([first, noise]))[0, 1])) < 0.03


def test_the_noise_has_more_than_32_bits_of_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's generator takes 32 bits of a seed: whoever tries them all takes the noise off."""
    seeds = []
    real = np.random.default_rng
    monkeypatch.setattr("fedl2g.uploads.mechanism.np.random.default_rng", lambda seed: seeds.append(seed) or real(seed))
    for key in ("a secret", "another"):
        monkeypatch.setenv(KEY_VARIABLE, key)
        _protection(clip=1.0, noise_multiplier=1.0, noise="client").protect(SENT, {}, CLASSES, 0, 1)
    assert all(seed.bit_length() > 128 for seed in seeds)
    apart = [real(seed).standard_normal(3).tolist() for seed in (seeds[0], seeds[0] ^ 1 << 300)]
    assert apart[0] != apart[1]
    assert seeds[0] != seeds[1]


def test_the_accountant_bounds_the_exact_gaussian_mechanism() -> None:
    """Without sampling, t rounds are one Gaussian mechanism of noise z / sqrt(t), whose delta is known exactly."""
    for z, steps in ((2.0, 1), (10.0, 50), (4.0, 3)):
        epsilon, mu = epsilon_spent(z, 1.0, steps, 1e-5), math.sqrt(steps) / z
        exact_delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        assert exact_delta <= 1e-5  # the bound holds,
        tighter = 0.8 * epsilon
        assert norm.cdf(mu / 2 - tighter / mu) - math.exp(tighter) * norm.cdf(-mu / 2 - tighter / mu) > 1e-5  # closely


def test_sampling_amplifies_and_rounds_add_up() -> None:
    assert epsilon_spent(1.0, 0.1, 100, 1e-5) < epsilon_spent(1.0, 1.0, 100, 1e-5)
    spent = [epsilon_spent(1.0, 0.1, steps, 1e-5) for steps in (0, 1, 10, 100)]
    assert spent == sorted(spent)
    assert spent[0] == 0


def test_noise_is_solved_for_a_target() -> None:
    z = solve_noise_multiplier(4.0, 1e-5, 0.2, 200)
    assert 3.9 < epsilon_spent(z, 0.2, 200, 1e-5) <= 4.0
    protection = _protection(clip=1.0, epsilon=4.0, participation=0.2, rounds=200)
    assert protection.noise_multiplier == z
    assert protection.epsilon(200, 60) <= 4.0
    on_clients = _protection(clip=1.0, epsilon=4.0, participation=0.2, rounds=200, noise="client")
    assert on_clients.noise_multiplier > z  # the server knows who takes part: no amplification
    assert on_clients.epsilon(200, 200) <= 4.0


def test_dense_uploads_hide_no_row_and_change_no_number() -> None:
    protection = _protection(dense_uploads=True)
    sent = protection.protect(SENT, {}, CLASSES, 0, 1)
    assert sent["ids"].tolist() == [0, 1, 2]
    assert sent["present"].tolist() == [1, 0, 1]
    assert all(torch.equal(sparse(sent)[name], SENT[name]) for name in SENT)
    assert all(torch.equal(protection.protect(sent, {}, CLASSES, 0, 1)[name], sent[name]) for name in sent)
    noisy = add_noise(sent, Noise(std=0.01), 0, 0, 1)
    assert noisy["rows"][1].abs().min() > 0  # the row of an absent class is hidden among the others,
    assert sparse(noisy)["ids"].tolist() == [0, 2]  # and is still known to be absent, as long as the noise is small
    much = add_noise(sent, Noise(coefficient=0.9), 0, 0, 1)
    assert sparse(much)["ids"].tolist() == [0, 2]  # shrunken vectors are still there
    torch.testing.assert_close(sparse(much)["rows"], 0.1 * SENT["rows"])
    server = _server("fedproto", protection)
    wide = {"ids": torch.tensor([1]), "rows": torch.ones(1, 8)}
    with pytest.raises(PayloadError):
        server.check(wide)
    server.check(protection.protect(wide, {}, CLASSES, 0, 1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"privacy": {"clip": 1.0}}, "either privacy.epsilon"),
        ({"privacy": {"clip": 1.0, "epsilon": 1.0, "noise_multiplier": 1.0}}, "either privacy.epsilon"),
        ({"privacy": {"max_epsilon": 1.0}}, "without privacy.clip"),
        ({"privacy": {"clip": 1.0, "epsilon": 1.0}, "method": "fedkd"}, "fedkd cannot be bounded"),
        ({"privacy": {"clip": 1.0, "epsilon": 1.0}, "aggregation": "median"}, "use mean"),
        (
            {"privacy": {"clip": 1.0, "epsilon": 1.0}, "availability": {"deadline": 2.0, "late": "use"}},
            "use drop",
        ),
        ({"privacy": {"clip": -1.0, "epsilon": 1.0}}, "privacy.clip"),
    ],
)
def test_what_cannot_be_guaranteed_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Experiment(**settings)


TINY: dict[str, Any] = {
    "samples": 100,
    "image_size": 16,
    "partition": "iid",
    "models": "small_cnn",
    "clients": 4,
    "participation": 0.5,
    "rounds": 3,
    "patience": 0,
    "evaluate_every": 3,
}


@pytest.mark.parametrize("method", ["local", "lg-fedavg", "fedgh", "feddistill", "fedproto", "fedl2g-l"])
def test_a_run_records_what_it_spent(method: str, tmp_path: Path) -> None:
    experiment = Experiment(**TINY, method=method, privacy={"clip": 1.0, "epsilon": 5.0, "denominator": "counted"})
    result = fedl2g.run(experiment, tmp_path / "run")
    rounds = RunDirectory.open(tmp_path / "run").history()[1:]
    spent = [record.privacy["epsilon"] for record in rounds]
    assert spent == sorted(spent)
    assert result.epsilon == spent[-1]
    assert result.delta == 1e-5
    if method == "local":
        assert spent == [0.0] * 3
    else:
        assert 4.9 < spent[-1] <= 5.0
        protection = Protection(experiment.privacy, 4, 0.5, 3, 0)
        assert [record.participants for record in rounds] == [protection.participants(r) for r in (1, 2, 3)]


def test_a_run_stops_before_it_spends_too_much(tmp_path: Path) -> None:
    once = epsilon_spent(1.0, 1.0, 1, 1e-5)
    twice = epsilon_spent(1.0, 1.0, 2, 1e-5)
    settings = {"clip": 1.0, "noise_multiplier": 1.0, "max_epsilon": (once + twice) / 2, "noise": "client"}
    experiment = Experiment(**{**TINY, "participation": 1.0}, method="feddistill", privacy=settings)
    result = fedl2g.run(experiment, tmp_path / "run")
    assert (result.status, result.rounds) == ("stopped early", 1)
    assert result.epsilon == once
    history = RunDirectory.open(tmp_path / "run").history()
    assert history[-1].loss is None  # the training loss would say what the noise hides


def _server(method: str, protection: Protection) -> ServerHalf[Any]:
    known = get_method(method)
    task = Task(CLASSES, (1, 16, 16), seed=5, rounds=20, auxiliary="small_cnn", feature_dim=8, protection=protection)
    return known.server(known.options.model_validate({"name": method}), task)
