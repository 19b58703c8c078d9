"""FedKD's factors: never empty, never larger than the tensor, within the energy bound, checked on arrival."""

from __future__ import annotations

import logging

import pytest
import torch
from method_helpers import LR, make_world
from torch import Tensor

from fedl2g.errors import PayloadError, SettingError
from fedl2g.experiment import Experiment
from fedl2g.methods.fedkd import FedKDOptions
from fedl2g.methods.low_rank import check_packed, compress, rank_for, reconstruct
from fedl2g.payload import Payload, nbytes, tensors_spec


def tensors() -> dict[str, Tensor]:
    torch.manual_seed(0)
    low = torch.randn(20, 2, dtype=torch.float64) @ torch.randn(2, 30, dtype=torch.float64)
    return {
        "low_rank": low,
        "convolution": torch.randn(8, 2, 3, 3, dtype=torch.float64)
        * torch.logspace(0, -3, 8).double()[:, None, None, None],
        "noise": torch.randn(12, 12, dtype=torch.float64),
        "zeros": torch.zeros(9, 7, dtype=torch.float64),
        "row": torch.randn(1, 50, dtype=torch.float64),
        "bias": torch.randn(9, dtype=torch.float64),
        "scalar": torch.tensor(3.0, dtype=torch.float64),
    }


@pytest.mark.parametrize("energy", [0.01, 0.5, 0.95, 0.98, 1.0])
def test_factors_hold_the_energy_and_are_smaller(energy: float) -> None:
    whole = tensors()
    packed = compress(whole, energy)
    check_packed(packed, tensors_spec(whole))
    back = reconstruct(packed, tensors_spec(whole))
    assert back.keys() == whole.keys()
    assert nbytes(packed) < nbytes(whole)
    for name, tensor in whole.items():
        assert back[name].shape == tensor.shape
        lost = (back[name] - tensor).square().sum()
        assert lost <= (1 - energy) * tensor.square().sum() + 1e-9
        if name + ".left" in packed:
            left, right = packed[name + ".left"], packed[name + ".right"]
            assert left.shape[1] >= 1
            assert left.numel() + right.numel() < tensor.numel()
            assert (len(left), right.shape[1]) == (len(tensor), tensor.numel() // len(tensor))
        else:
            assert torch.equal(back[name], tensor)
    assert "bias" in packed
    assert "row" in packed  # rank 1 of a single row is more than the row


def test_rank_is_the_smallest_that_suffices() -> None:
    values = torch.tensor([3.0, 2.0, 1.0, 0.0])  # energies 9, 4, 1, 0 of 14
    assert [rank_for(values, e) for e in (1e-9, 9 / 14, 0.65, 13 / 14, 0.95, 1.0)] == [1, 1, 2, 2, 3, 3]
    assert rank_for(torch.zeros(5), 0.95) == 1


def test_svd_that_does_not_converge(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.linalg.LinAlgError("did not converge")

    monkeypatch.setattr(torch.linalg, "svd", fail)
    whole = tensors()
    with caplog.at_level(logging.WARNING):
        packed = compress(whole, 0.95)
    assert packed.keys() == whole.keys()
    assert all(torch.equal(packed[name], whole[name]) for name in whole)
    assert "low_rank" in caplog.text


def packed() -> Payload:
    return compress(tensors(), 0.95)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"low_rank.left": None}, "entry 'low_rank.left' is missing"),
        ({"low_rank.right": None}, "entry 'low_rank.right' is missing"),
        ({"bias": None}, "entry 'bias' is missing"),
        ({"low_rank": torch.zeros(20, 30, dtype=torch.float64)}, "entry 'low_rank' is unknown"),
        ({"bias.left": torch.zeros(9, 1, dtype=torch.float64)}, "entry 'bias.left' is unknown"),
        ({"low_rank.left": torch.zeros(20, 3, dtype=torch.float64)}, "low_rank.right"),
        ({"low_rank.left": torch.zeros(20, 2)}, "dtype"),
        ({"low_rank.left": torch.full((20, 2), torch.nan, dtype=torch.float64)}, "NaN"),
        (
            {
                "low_rank.left": torch.zeros(20, 0, dtype=torch.float64),
                "low_rank.right": torch.zeros(0, 30, dtype=torch.float64),
            },
            "rank 0",
        ),
        (
            {
                "low_rank.left": torch.zeros(20, 12, dtype=torch.float64),  # 12 * (20 + 30) = 20 * 30
                "low_rank.right": torch.zeros(12, 30, dtype=torch.float64),
            },
            "rank 12",
        ),
        (
            {
                "low_rank.left": torch.full((20, 2), 1e200, dtype=torch.float64),
                "low_rank.right": torch.full((2, 30), 1e200, dtype=torch.float64),
            },
            "product of its factors is not finite",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(change: dict[str, Tensor | None], message: str) -> None:
    payload = {**packed(), **change}
    payload = {name: tensor for name, tensor in payload.items() if tensor is not None}
    with pytest.raises(PayloadError, match=message):
        check_packed(payload, tensors_spec(tensors()))


def test_both_sides_of_fedkd_check() -> None:
    world = make_world("fedkd", energy_start=0.5)
    payload = world.server.broadcast(1)
    name = next(name for name in payload if name.endswith(".left"))
    broken = {**payload, name: payload[name][:, :0]}
    for check in (world.check, world.halves[0].check):
        check(payload)
        with pytest.raises(PayloadError):
            check(broken)


def test_energy_rises_linearly_over_the_rounds_of_the_run() -> None:
    task, options = make_world("fedkd").server.task, FedKDOptions()
    shares = [options.energy(round, task) for round in range(1, task.rounds + 1)]
    assert shares == pytest.approx([0.95, 0.9575, 0.965, 0.9725, 0.98])
    with pytest.raises(SettingError, match="energy_end"):
        Experiment(method={"name": "fedkd", "energy_start": 0.9, "energy_end": 0.5})


def test_perfectly_learnt_batches_divide_by_nothing() -> None:
    """Both cross entropies are exactly 0 with logits this sure: 0/0 must not end the run, nor 1/S blow up the map."""
    world = make_world("fedkd")
    for half in world.halves:
        y = half.client.train_set.labels[half.client.train_set.indices]
        half.client.train_set = half.client.train_set.subset(torch.nonzero(y == y[0]).flatten())
        for network in (half.model, world.server.shared.network):
            with torch.no_grad():
                network.head.weight.zero_()
                network.head.bias.zero_()
                network.head.bias[y[0]] = 1e4
        payload = world.server.broadcast(1)
        before = half.feature_map.weight.detach().clone()
        trained = half.train(1, payload)
        world.check(trained.payload)
        moved = torch.linalg.vector_norm(half.feature_map.weight.detach() - before)
        assert 0 < moved <= trained.log.steps * LR * 10 * (1 + 1e-9)
