"""The clipped step: the numbers of float64, the bits of plain SGD where nothing is clipped, torch's way with NaN."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from fedl2g.learning.optimizer import ClippedSGD
from fedl2g.models import build_model
from fedl2g.schema import image_schema

LR = 0.05
SHAPES = ((1,), (7,), (40, 1000), (512, 130, 3, 3), (1000, 3000), (2, 3))
SMALL = ((1,), (7,), (32, 1000), (20, 3, 3, 3), (2, 3))  # together small enough to be copied into one


def parameters(dtype: torch.dtype = torch.float32, shapes: tuple[tuple[int, ...], ...] = SHAPES) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    made = []
    for shape in shapes:
        p = nn.Parameter(torch.randn(shape, dtype=dtype, generator=generator))
        p.grad = 1e-3 * torch.randn(shape, dtype=dtype, generator=generator)
        made.append(p)
    return made


def gradients(of: list[nn.Parameter]) -> list[Tensor]:
    return [p.grad.clone() for p in of if p.grad is not None]


def norm_of(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(t.double().square().sum().item() for t in tensors))


@pytest.mark.parametrize("share", [1e-9, 0.01, 0.5, 0.99, 1.01, 50.0])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-6), (torch.float64, 1e-13)])
@pytest.mark.parametrize("shapes", [SHAPES, SMALL], ids=["large", "small"])
def test_a_clipped_step_equals_the_formula_in_float64(
    shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype, close: float, share: float
) -> None:
    moved = parameters(dtype, shapes)
    given = gradients(moved)
    norm = norm_of(given)
    clip = share * norm
    with torch.no_grad():
        for p in moved:
            p.zero_()  # what is left is the step, with all its digits
    ClippedSGD(moved, LR, clip).step()
    rate = LR * min(1.0, clip / (norm + 1e-6))
    for p, g in zip(moved, given, strict=True):
        step = -rate * g.double()
        assert (p.detach().double() - step).norm() <= close * step.norm()


@pytest.mark.parametrize("clip", [math.inf, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_step_that_is_not_clipped_has_the_bits_of_plain_sgd(dtype: torch.dtype, clip: float) -> None:
    ours, theirs = parameters(dtype), parameters(dtype)
    ClippedSGD(ours, LR, clip).step()
    torch.optim.SGD(theirs, LR).step()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert all(p.grad is None for p in ours)


@pytest.mark.parametrize("where", [0, 3, 5])
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_what_is_not_finite_does_what_it_does_in_torch(where: int, value: float) -> None:
    """NaN reaches every parameter; a norm that overflows stops the step, and infinity itself becomes NaN."""
    ours, theirs = parameters(), parameters()
    for own in (ours, theirs):
        gradient = own[where].grad
        assert gradient is not None
        gradient.view(-1)[0] = value
    nn.utils.clip_grad_norm_(theirs, 1.0)
    torch.optim.SGD(theirs, LR).step()
    ClippedSGD(ours, LR, clip=1.0).step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)
    assert ours[0].isnan().all() == ours[2].isnan().all() == math.isnan(value) or where == 0


def test_a_nan_reaches_its_parameter_without_clipping_too() -> None:
    p = nn.Parameter(torch.zeros(2))
    p.grad = torch.tensor([math.nan, 1.0])
    ClippedSGD([p], 1.0).step()
    assert p.isnan().tolist() == [True, False]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("clip", [0.5, 1e6])
@pytest.mark.parametrize("name", ["small_mobilenet", "resnet4"])
def test_networks_train_as_with_torch_in_both_layouts(name: str, layout: torch.memory_format, clip: float) -> None:
    torch.manual_seed(0)
    ours = build_model(name, classes=5, inputs=image_schema(3, 16, 16)).to(memory_format=layout).train()
    theirs = copy.deepcopy(ours)
    own, optimizer = ClippedSGD(ours.parameters(), 1e-3, clip), torch.optim.SGD(theirs.parameters(), 1e-3)
    for _ in range(3):
        x = torch.randn(6, 3, 16, 16).to(memory_format=layout)
        (10 * ours(x)[1].square().mean()).backward()
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert a.grad is not None
            b.grad = a.grad.clone()
        assert nn.utils.clip_grad_norm_(theirs.parameters(), clip) > 0.5
        own.step()
        optimizer.step()
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert a.stride() == b.stride()
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_gradients_in_another_order_in_memory_and_parameters_with_gaps() -> None:
    memory = torch.arange(12.0)
    with_gaps, other_order = nn.Parameter(memory[::2]), nn.Parameter(torch.zeros(2, 3))
    with_gaps.grad = torch.ones(6)
    other_order.grad = torch.arange(6.0).view(3, 2).t()
    ClippedSGD([with_gaps, other_order], 1.0, clip=100.0).step()
    assert memory.tolist() == [-1, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11]
    assert other_order.tolist() == [[0, -2, -4], [-1, -3, -5]]


@pytest.mark.parametrize("clip", [5.0, math.inf])
def test_parameters_without_a_gradient_stay(clip: float) -> None:
    used, unused = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    frozen = nn.Parameter(torch.zeros(2), requires_grad=False)
    optimizer = ClippedSGD([used, unused, frozen], 1.0, clip)
    optimizer.step()  # nobody has one
    used.grad = torch.tensor([3.0, 4.0])
    optimizer.step()
    torch.testing.assert_close(used.detach(), torch.tensor([-3.0, -4.0]))
    assert unused.tolist() == frozen.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_parameter_of_two_networks_counts_and_moves_once(dtype: torch.dtype) -> None:
    first, second = nn.Linear(2, 1, bias=False).to(dtype), nn.Linear(2, 1, bias=False)
    second.weight = first.weight
    nn.init.zeros_(first.weight)
    first.weight.grad = torch.tensor([[30.0, 40.0]], dtype=dtype)
    ClippedSGD([*first.parameters(), *second.parameters()], lr=1.0, clip=5.0).step()
    torch.testing.assert_close(first.weight.detach(), torch.tensor([[-3.0, -4.0]], dtype=dtype))


def test_a_rate_and_a_limit_that_change_are_those_of_the_next_step() -> None:
    p = nn.Parameter(torch.zeros(2))
    optimizer = ClippedSGD([p], lr=1.0, clip=5.0)
    expected = torch.zeros(2)
    for optimizer.lr, optimizer.clip, rate in ((1.0, 5.0, 0.1), (0.5, 5.0, 0.05), (0.5, 500.0, 0.5)):
        p.grad = torch.tensor([30.0, 40.0])
        expected -= rate * p.grad
        optimizer.step()
        torch.testing.assert_close(p.detach(), expected)


def test_autograd_notices_that_the_parameters_have_moved() -> None:
    p = nn.Parameter(torch.ones(3))
    loss = p.square().sum()
    p.grad = torch.ones(3)
    ClippedSGD([p], LR, clip=1.0).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_network_that_changes_its_type_is_stepped_as_it_is() -> None:
    model = nn.Linear(3, 1, bias=False)
    optimizer = ClippedSGD(model.parameters(), lr=0.5, clip=100.0)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        model.to(dtype)
        nn.init.ones_(model.weight)
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.step()
        assert model.weight.tolist() == [[0.5, 0.5, 0.5]]
