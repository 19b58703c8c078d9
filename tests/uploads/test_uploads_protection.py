"""The client's side of the guarantee: the whole upload is clipped, and noise is added before it leaves."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fedl2g.experiment.policies import Privacy
from fedl2g.methods.base import Report
from fedl2g.payload import Payload
from fedl2g.privacy.mechanism import Mechanism
from fedl2g.privacy.noise_key import KEY_VARIABLE
from fedl2g.rng import torch_stream
from fedl2g.uploads.dense import Dense
from fedl2g.uploads.protection import Protect
from fedl2g.uploads.stage import Upload

CLASSES = 3
SENT: Payload = {"ids": torch.tensor([0, 2]), "rows": torch.tensor([[3.0, 0.0], [0.0, 4.0]])}


class KnownNoise(Mechanism):
    """Noise that a test can compute too, to see where it goes; of the right size."""

    def noise_for(self, vector: torch.Tensor, purpose: str, *ids: int) -> torch.Tensor:
        return self.std * _draw(len(vector), purpose, *ids)


def _draw(shape: int, purpose: str, *ids: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch_stream(5, purpose, *ids), dtype=torch.float64)


def _mechanism(kind: type[Mechanism] = Mechanism, **settings: Any) -> Mechanism:
    return kind(Privacy(**settings), clients=10, participation=0.5, rounds=20, seed=5)


def _protected(
    mechanism: Mechanism, payload: Payload, received: Payload | None = None, *, classes: int = CLASSES, **ids: int
) -> Payload:
    """What leaves the client: class vectors densely, as under every guarantee."""
    dense = Dense.of(mechanism.settings, classes)
    assert dense is not None
    at = {"client": 0, "round": 1, **ids}
    upload = Upload(
        **at, payload=dense.pack(payload), report=Report(5), received=received or {}, decode=lambda given: given
    )
    return Protect(mechanism).apply(upload).payload


def test_a_whole_upload_is_clipped() -> None:
    sent = _protected(_mechanism(clip=1.0, noise_multiplier=1.0), SENT)
    torch.testing.assert_close(sent["rows"], torch.tensor([[0.6, 0.0], [0.0, 0.0], [0.0, 0.8]]))
    assert set(sent) == {"ids", "rows"}
    assert float(sent["rows"].double().norm()) < 1.0
    short = _protected(_mechanism(clip=100.0, noise_multiplier=1.0), SENT)
    assert torch.equal(short["rows"][[0, 2]], SENT["rows"])


def test_the_count_is_part_of_the_clipped_vector() -> None:
    sent = _protected(_mechanism(clip=1.0, noise_multiplier=1.0, denominator="counted", count_weight=2.0), SENT)
    length = math.sqrt(9 + 16 + 2 * 2.0**2)
    torch.testing.assert_close(sent["present"], torch.tensor([1 / length, 0.0, 1 / length]))
    whole = torch.cat([sent["rows"].double().flatten(), 2.0 * sent["present"].double()])
    assert float(whole.norm()) == pytest.approx(1.0, abs=1e-5)


def test_the_change_of_a_network_is_clipped() -> None:
    start = {"a": torch.tensor([1.0, 1.0]), "b": torch.tensor([0.0])}
    moved = {"a": torch.tensor([1.0, 7.0]), "b": torch.tensor([8.0])}  # by 10: half of it is left
    sent = _protected(_mechanism(clip=5.0, noise_multiplier=0.1), moved, start)
    torch.testing.assert_close(sent["a"], torch.tensor([1.0, 4.0]), atol=1e-4, rtol=0)
    torch.testing.assert_close(sent["b"], torch.tensor([4.0]), atol=1e-4, rtol=0)


def test_noise_on_the_client() -> None:
    mechanism = _mechanism(KnownNoise, clip=1.0, noise_multiplier=0.5, noise="client")
    sent = _protected(mechanism, SENT, client=3, round=7)
    clean = torch.tensor([0.6, 0.0, 0.0, 0.0, 0.0, 0.8], dtype=torch.float64)
    expected = clean + 0.5 * _draw(6, "privacy_client", 3, 7)
    torch.testing.assert_close(sent["rows"].flatten().double(), expected, atol=1e-5, rtol=0)


def test_a_key_changes_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever knows the seed, but not the key, cannot take the noise off again."""
    mechanism = _mechanism(clip=1.0, noise_multiplier=1.0, noise="client")
    open_, again = (_protected(mechanism, SENT)["rows"] for _ in range(2))
    monkeypatch.setenv(KEY_VARIABLE, "a secret")
    assert torch.equal(open_, again)
    assert not torch.equal(open_, _protected(mechanism, SENT)["rows"])


def _uploaded_noise(values: torch.Tensor, mechanism: Mechanism, client: int = 0, round: int = 1) -> torch.Tensor:
    """What is added to one long row (clipped to norm 1) of a client."""
    row = {"ids": torch.tensor([0]), "rows": values[None]}
    sent = _protected(mechanism, row, classes=1, client=client, round=round)
    return (sent["rows"][0] - values / values.norm()).double()


def test_the_noise_is_gaussian_of_the_stated_deviation() -> None:
    mechanism = _mechanism(clip=1.0, noise_multiplier=0.5, noise="client")
    values = torch.randn(50_000, generator=torch.Generator().manual_seed(0))
    noise = _uploaded_noise(values, mechanism)
    assert float(noise.mean()) == pytest.approx(0, abs=0.01)
    assert float(noise.std()) == pytest.approx(0.5, rel=0.02)
    assert float((noise.abs() < 0.5).double().mean()) == pytest.approx(0.6827, abs=0.01)  # one deviation
    assert abs(float(torch.corrcoef(torch.stack([noise, values.double()]))[0, 1])) < 0.02


def test_no_two_vectors_share_their_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same round, under the same key: the difference of two uploads must not be bare."""
    monkeypatch.setenv(KEY_VARIABLE, "a secret")
    mechanism = _mechanism(clip=1.0, noise_multiplier=0.5, noise="client")
    one = torch.randn(20_000, generator=torch.Generator().manual_seed(0))
    other = one.clone()
    other[0] += 1e-3
    first, second = _uploaded_noise(one, mechanism), _uploaded_noise(other, mechanism)
    assert torch.equal(first, _uploaded_noise(one, mechanism))  # a replay repeats itself
    others = [second, _uploaded_noise(one, mechanism, client=1), _uploaded_noise(one, mechanism, round=2)]
    for noise in others:
        assert abs(float(torch.corrcoef(torch.stack([first, noise]))[0, 1])) < 0.03


@pytest.mark.parametrize("payload", [SENT, {}])
def test_a_report_says_nothing_of_the_data_where_the_server_is_not_trusted(payload: Payload) -> None:
    full = Report(samples=40, steps=8, loss=0.25, seconds=3.0, laps={"data": 1.0})
    for noise, expected in (("server", full), ("client", Report(1, 1, None, 3.0, {"data": 1.0}))):
        stage = Protect(_mechanism(clip=1.0, noise_multiplier=1.0, noise=noise))
        assert stage.apply(Upload(0, 1, payload, full, {}, lambda given: given)).report == expected
    idle = Protect(_mechanism(clip=1.0, noise_multiplier=1.0, noise="client"))
    assert idle.apply(Upload(0, 1, payload, Report(40), {}, lambda given: given)).report.steps == 0
