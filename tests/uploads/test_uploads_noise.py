"""The paper's noise on uploads: exact numbers, off means off."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedl2g.errors import SettingError
from fedl2g.experiment import Experiment, explain
from fedl2g.experiment.policies import Noise
from fedl2g.methods.base import Report
from fedl2g.methods.low_rank import LOW_RANK, compress
from fedl2g.payload import Payload, Specification, TensorSpec, root_mean_square
from fedl2g.rng import torch_stream
from fedl2g.uploads.dense import Dense
from fedl2g.uploads.noise import AddNoise
from fedl2g.uploads.stage import Upload
from fedl2g.uploads.stages import upload_stages

TINY: dict[str, Any] = {
    "method": {"name": "fedproto"},
    "samples": 200,
    "image_size": 16,
    "partition": "dirichlet:1",
    "models": "small_cnn,small_resnet",
    "clients": 3,
    "rounds": 2,
}


def _upload() -> dict[str, torch.Tensor]:
    return {"ids": torch.tensor([0, 2]), "rows": torch.tensor([[3.0, -4.0], [0.0, 5.0]])}


def noisy(upload: Payload, noise: Noise, seed: int = 0, client: int = 0, round: int = 1) -> Payload:
    """What leaves the client."""
    given = Upload(client, round, upload, Report(5), {}, lambda payload: payload)
    return AddNoise(noise, seed).apply(given).payload


def test_noise_is_the_formula() -> None:
    sent = noisy(_upload(), Noise(std=0.05, coefficient=0.1), seed=7, client=2, round=3)
    draw = torch.randn(2, 2, generator=torch_stream(7, "noise", 2, 3), dtype=torch.float64)
    assert torch.equal(sent["ids"], torch.tensor([0, 2]))
    torch.testing.assert_close(sent["rows"], (0.9 * _upload()["rows"].double() + 0.05 * draw).float(), rtol=0, atol=0)


def test_relative_noise_scales_with_the_upload() -> None:
    assert root_mean_square(_upload()) == pytest.approx((50 / 4) ** 0.5)
    relative = noisy(_upload(), Noise(std=0.05, scale="relative"), seed=7, client=2, round=3)
    absolute = noisy(_upload(), Noise(std=0.05 * (50 / 4) ** 0.5), seed=7, client=2, round=3)
    torch.testing.assert_close(relative["rows"], absolute["rows"])
    huge = {"ids": torch.tensor([1]), "rows": torch.full((1, 1000), 1e6)}
    change = noisy(huge, Noise(std=0.05, scale="relative"))["rows"] - huge["rows"]
    assert float(change.std()) == pytest.approx(0.05e6, rel=0.1)


def test_relative_noise_of_a_dense_upload_is_that_of_its_rows() -> None:
    """Neither the 0/1 entry `present` nor the zero rows of absent classes count in the size of an upload."""
    small = {"ids": torch.tensor([0, 2]), "rows": 1e-3 * _upload()["rows"]}
    dense = Dense(classes=4, counted=True).pack(small)
    noise = Noise(std=0.05, coefficient=0.2, scale="relative")
    sent = noisy(dense, noise, seed=7, client=2, round=3)
    stream = torch_stream(7, "noise", 2, 3)
    rows, present = (torch.randn(shape, generator=stream, dtype=torch.float64) for shape in ((4, 2), (4,)))
    std = 0.05 * 1e-3 * (50 / 4) ** 0.5
    torch.testing.assert_close(sent["rows"], (0.8 * dense["rows"].double() + std * rows).float(), rtol=1e-6, atol=0)
    # An indicator is relative to its own size, 1, and not scaled by 1 - p.
    marks = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(sent["present"], (marks + 0.05 * present).float(), rtol=1e-6, atol=0)


def test_noise_on_low_rank_factors_scales_the_network_once() -> None:
    """FedKD: with p on both factors a tensor would be scaled by (1 - p)^2 = 0.64 instead of 0.8."""
    torch.manual_seed(0)
    left, right = torch.randn(40, 2), torch.randn(2, 30)
    packed = compress({"weight": left @ right, "bias": torch.ones(40)}, 0.99)
    assert set(packed) == {"weight.left", "weight.right", "bias"}
    whole: Specification = {"weight": TensorSpec((40, 30)), "bias": TensorSpec((40,))}
    given = Upload(0, 1, packed, Report(5), {}, lambda payload: LOW_RANK.decode(payload, whole))
    sent = AddNoise(Noise(std=0.0, coefficient=0.2), seed=0).apply(given).payload
    LOW_RANK.check(sent, whole)
    received = LOW_RANK.decode(sent, whole)
    torch.testing.assert_close(received["weight"], 0.8 * (left @ right), rtol=1e-4, atol=1e-5)
    assert torch.equal(received["bias"], torch.full((40,), 0.8))


def test_noise_differs_by_client_and_round_and_not_by_call() -> None:
    noise = Noise(std=1.0)
    draws = {
        (client, round): tuple(noisy(_upload(), noise, 0, client, round)["rows"].flatten().tolist())
        for client in range(3)
        for round in range(3)
    }
    assert len(set(draws.values())) == 9
    assert draws[1, 1] == tuple(noisy(_upload(), noise, 0, 1, 1)["rows"].flatten().tolist())


def test_off_changes_nothing() -> None:
    assert upload_stages(Experiment(**TINY), classes=10).stages == ()
    assert noisy({}, Noise(std=1.0, scale="relative")) == {}


def test_the_upload_itself_is_left_as_it_is() -> None:
    upload = _upload()
    noisy(upload, Noise(std=1.0, coefficient=0.5))
    assert all(torch.equal(upload[name], tensor) for name, tensor in _upload().items())


@pytest.mark.parametrize("settings", [{"std": -1}, {"coefficient": 1.5}, {"scale": "log"}, {"sdt": 1}, {"std": "nan"}])
def test_wrong_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=r"noise\."):
        Experiment(noise=settings)


def test_it_says_that_it_guarantees_nothing() -> None:
    assert "no differential-privacy guarantee" in explain("noise.std")
