"""The clipped step in one pass: the same numbers as two passes in float64, whatever the sizes and wherever it clips."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedl2g.learning.descent import BLOCK, ClippedStep
from fedl2g.learning.training import Update

SIZES = (1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5, 2)
LR = 0.05


def tensors(scale: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [scale * torch.randn(size, generator=generator) for size in SIZES]


def clipped_step(parameters: list[Tensor], gradients: list[Tensor], lr: float, clip: float) -> float:
    """One step with these gradients; returns their norm."""
    for p, g in zip(parameters, gradients, strict=True):
        p.grad = g
    step = ClippedStep(parameters)
    assert step(lr, clip)
    return step.norm


def slowly(parameters: list[Tensor], gradients: list[Tensor], clip: float) -> tuple[list[Tensor], float]:
    """The step in float64, and the norm."""
    norm = torch.cat([g.double() for g in gradients]).norm().item()
    rate = LR * min(1.0, clip / (norm + 1e-6))
    return [p.double() - rate * g.double() for p, g in zip(parameters, gradients, strict=True)], norm


def assert_equals_the_slow_step(gradients: list[Tensor], clip: float) -> float:
    parameters = tensors()
    expected, norm = slowly(parameters, gradients, clip)
    found = clipped_step(parameters, gradients, LR, clip)
    assert found == pytest.approx(norm, rel=1e-6)
    for p, q in zip(parameters, expected, strict=True):
        torch.testing.assert_close(p.double(), q, rtol=3e-7, atol=3e-7)
    return norm


@pytest.mark.parametrize("share", [1e-9, 0.01, 0.2, 0.5, 0.8, 0.99, 1.0, 1.01, 50.0])
def test_it_equals_two_passes_in_float64_wherever_the_limit_breaks(share: float) -> None:
    gradients = tensors(scale=0.3)
    norm = torch.cat(gradients).norm().item()
    assert_equals_the_slow_step(gradients, clip=share * norm)


def test_a_limit_below_what_is_added_to_the_norm_is_kept_too() -> None:
    ours, gradients = [torch.zeros(2)], [torch.tensor([3e-7, 4e-7])]
    clipped_step(ours, gradients, lr=1.0, clip=1e-7)
    torch.testing.assert_close(ours[0], gradients[0] * (-1e-7 / 1.5e-6), rtol=1e-5, atol=0)


@pytest.mark.parametrize("where", [0, 2, 5, 6])
def test_a_gradient_that_explodes_leaves_no_trace_of_the_step_that_was_not_made(where: int) -> None:
    gradients = tensors(scale=0.01)
    gradients[where][-1] = 1e15  # moved by this and back, a parameter would have lost all its digits
    assert assert_equals_the_slow_step(gradients, clip=10.0) == pytest.approx(1e15)


def test_without_clipping_every_bit_is_that_of_torch() -> None:
    ours, theirs, gradients = tensors(), tensors(), tensors(scale=0.3)
    clipped_step(ours, gradients, LR, clip=1e6)
    torch._foreach_add_(theirs, gradients, alpha=-LR)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("where", [0, 5, 6])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_what_cannot_be_measured_does_what_torch_does(where: int, value: float) -> None:
    """NaN reaches all parameters; an infinite norm stops the step, and infinity itself gives NaN."""
    ours, gradients = tensors(), tensors()
    gradients[where][0] = value
    theirs = [nn.Parameter(p.clone()) for p in ours]
    for p, g in zip(theirs, gradients, strict=True):
        p.grad = g.clone()
    nn.utils.clip_grad_norm_(theirs, 1.0)
    torch.optim.SGD(theirs, LR).step()
    clipped_step(ours, gradients, LR, clip=1.0)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b.detach(), equal_nan=True)


def network(layout: torch.memory_format = torch.contiguous_format) -> nn.Module:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.Flatten())
    return nn.Sequential(body, nn.Linear(8 * 6 * 6, 5)).to(memory_format=layout)


@pytest.fixture
def steps_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each step, whether it was made in one pass."""
    found: list[bool] = []
    step = ClippedStep.__call__

    def noted(self: ClippedStep, lr: float, clip: float) -> bool:
        found.append(step(self, lr, clip))
        return found[-1]

    monkeypatch.setattr(ClippedStep, "__call__", noted)
    return found


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("clip", [0.5, 100.0])
def test_networks_in_both_layouts_train_as_with_torch(
    layout: torch.memory_format, clip: float, steps_in_one_pass: list[bool]
) -> None:
    ours = network(layout)
    theirs = copy.deepcopy(ours)
    update = Update(ours.parameters(), LR, clip)
    optimizer = torch.optim.SGD(theirs.parameters(), LR)
    for step in range(4):
        x = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(step)).to(memory_format=layout)
        for model in (ours, theirs):
            (10 * model(x).square().mean()).backward()
        assert nn.utils.clip_grad_norm_(theirs.parameters(), clip) > 0.5
        update.step()
        optimizer.step()
        optimizer.zero_grad()
    assert steps_in_one_pass == [True] * 4
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_what_lies_in_memory_another_way_takes_the_two_passes(steps_in_one_pass: list[bool]) -> None:
    memory = torch.arange(12.0)
    with_gaps = nn.Parameter(memory[::2])
    with_gaps.grad = torch.ones(6)
    other_order = nn.Parameter(torch.zeros(2, 3))
    other_order.grad = torch.arange(6.0).view(3, 2).t()
    Update([with_gaps], 1.0, clip=100.0).step()
    assert memory.tolist() == [-1, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11]
    Update([other_order], 1.0, clip=100.0).step()
    assert other_order.tolist() == [[0, -2, -4], [-1, -3, -5]]
    assert steps_in_one_pass == [False]  # gaps are seen before the step is compiled


def test_without_a_gradient_for_all_it_takes_the_two_passes(steps_in_one_pass: list[bool]) -> None:
    used, unused = nn.Parameter(torch.zeros(6)), nn.Parameter(torch.zeros(6))
    used.grad = torch.ones(6)
    Update([used, unused], 1.0, clip=100.0).step()
    assert used.tolist() == [-1.0] * 6
    assert unused.tolist() == [0.0] * 6
    assert steps_in_one_pass == [False]


def test_gradients_of_another_type_take_the_two_passes(steps_in_one_pass: list[bool]) -> None:
    p = nn.Parameter(torch.zeros(2))
    p.grad_dtype = torch.float64
    p.grad = torch.tensor([30.0, 40.0], dtype=torch.float64)
    Update([p], 1.0, clip=5.0).step()
    torch.testing.assert_close(p.detach(), torch.tensor([-3.0, -4.0]))
    assert steps_in_one_pass == []


def test_a_rate_and_a_limit_that_change_are_those_of_the_next_step() -> None:
    p = nn.Parameter(torch.zeros(2))
    update = Update([p], lr=1.0, clip=5.0)
    expected = torch.zeros(2)
    for update.lr, update.clip, step in ((1.0, 5.0, 0.1), (0.5, 5.0, 0.05), (0.5, 500.0, 0.5)):
        p.grad = torch.tensor([30.0, 40.0])
        expected -= step * p.grad
        update.step()
        torch.testing.assert_close(p.detach(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_parameter_of_two_networks_moves_once(dtype: torch.dtype) -> None:
    p = nn.Parameter(torch.zeros(2, dtype=dtype))
    p.grad = torch.tensor([30.0, 40.0], dtype=dtype)
    Update([p, p], lr=1.0, clip=5.0).step()
    torch.testing.assert_close(p.detach(), torch.tensor([-3.0, -4.0], dtype=dtype))


def test_autograd_notices_that_the_parameters_have_moved() -> None:
    p = nn.Parameter(torch.ones(3))
    loss = p.square().sum()
    p.grad = torch.ones(3)
    Update([p], LR, clip=1.0).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_the_bits_do_not_depend_on_where_tensors_lie() -> None:
    found = set()
    for offset in (0, 1, 3, 8, 13):
        memory = torch.zeros(2 * (sum(SIZES) + 20))
        parameters, gradients = [], []
        for p, g in zip(tensors(), tensors(scale=0.3), strict=True):
            both = memory[offset : offset + 2 * len(p)].copy_(
                torch.cat([p, g])
            )  # a gradient right behind its parameter
            parameters.append(both[: len(p)])
            gradients.append(both[len(p) :])
            offset += 2 * len(p)
        norm = clipped_step(parameters, gradients, LR, clip=20.0)
        found.add((norm, torch.cat(parameters).numpy().tobytes()))
    assert norm > 20.0
    assert len(found) == 1


def test_a_network_that_moves_after_its_first_step_is_stepped_where_it_is(steps_in_one_pass: list[bool]) -> None:
    model = nn.Linear(3, 1, bias=False)
    update = Update(model.parameters(), lr=0.5, clip=100.0)
    moves: list[tuple[bool, Callable[[], Any]]] = [
        (True, lambda: model),
        (False, lambda: setattr(model.weight, "data", model.weight.data.clone())),
        (False, lambda: model.to(torch.float64)),
        (False, lambda: model.to(torch.bfloat16)),
    ]
    for _, move in moves:
        move()
        nn.init.ones_(model.weight)
        model.weight.grad = torch.ones_like(model.weight)
        update.step()
        assert model.weight.tolist() == [[0.5, 0.5, 0.5]]
        assert model.weight.grad is None
    assert steps_in_one_pass == [one_pass for one_pass, _ in moves]


def test_a_network_that_changes_its_type_after_the_update_was_made_is_stepped_as_it_is() -> None:
    for dtype in (torch.float64, torch.bfloat16):
        model = nn.Linear(3, 1, bias=False)
        update = Update(model.parameters(), lr=0.5, clip=100.0)
        model.to(dtype)
        nn.init.ones_(model.weight)
        model.weight.grad = torch.ones_like(model.weight)
        update.step()
        assert model.weight.tolist() == [[0.5, 0.5, 0.5]]
