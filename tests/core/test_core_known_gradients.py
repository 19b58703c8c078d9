"""FedL2G's loss by its known gradients: torch's own in float64, and never where memory is laid out otherwise."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedl2g.learning.known_gradients import KnownGradients
from fedl2g.learning.losses import Objective, guided_loss
from fedl2g.models import build_model

SIZES = [(1, 2, 1), (2, 10, 512), (10, 10, 7), (33, 100, 65), (10, 3, 3)]  # samples, classes, width of the features
SPACES = ["logits", "features"]


class Network(nn.Module):
    """Two layers: the gradient of the first comes from the features and, through the second, from the logits."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.extractor, self.head = nn.Linear(5, width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.extractor(x)
        return features, self.head(features)


def world(samples: int, classes: int, width: int, space: str) -> tuple[Network, Tensor, Tensor, Tensor]:
    torch.manual_seed(samples)
    guide = torch.randn(classes, classes if space == "logits" else width)
    return Network(classes, width), torch.randn(samples, 5), torch.randint(classes, (samples,)), guide


def loss_of(model: nn.Module, x: Tensor, y: Tensor, guide: Tensor, space: str) -> tuple[Objective, Tensor]:
    features, logits = model(x)
    return guided_loss(logits, features if space == "features" else logits, y, guide)


def slowly(model: nn.Module, x: Tensor, y: Tensor, guide: Tensor, space: str) -> tuple[list[Tensor], Tensor]:
    """The gradients and the cross entropy in float64, the formula written out."""
    model = copy.deepcopy(model).double()
    features, logits = model(x.double())
    z = features if space == "features" else logits
    own = (logits.logsumexp(dim=1) - logits[torch.arange(len(y)), y]).mean()
    loss = own + ((z - guide.double()[y]) ** 2).mean()
    return list(torch.autograd.grad(loss, list(model.parameters()))), own.detach()


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("sizes", SIZES)
def test_the_gradients_are_those_of_float64(sizes: tuple[int, int, int], space: str) -> None:
    model, x, y, guide = world(*sizes, space)
    expected, cross = slowly(model, x, y, guide, space)
    objective, own = loss_of(model, x, y, guide, space)
    assert isinstance(objective, KnownGradients)
    objective.backward()
    torch.testing.assert_close(own, cross, rtol=1e-6, atol=1e-6)
    for p, gradient in zip(model.parameters(), expected, strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.grad.double(), gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shift", [-1e4, 0.0, 1e4])
def test_logits_far_from_zero_overflow_nowhere(shift: float) -> None:
    logits = (torch.tensor([[0.0, 200.0, -300.0], [1.0, 1.0, 1.0]]) + shift).requires_grad_()
    y = torch.tensor([1, 2])
    objective, own = guided_loss(logits, logits, y, torch.zeros(3, 3))
    objective.backward()
    pull = 2 * logits.detach() / logits.numel()
    share = torch.tensor([[0.0, 0.0, 0.0], [1 / 6, 1 / 6, -1 / 3]])
    torch.testing.assert_close(logits.grad, pull + share)
    assert own.item() == pytest.approx(math.log(3) / 2)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", [0, 2])
def test_what_is_no_number_stays_none_in_its_sample_alone(value: float, where: int) -> None:
    logits = torch.zeros(2, 3)
    logits[1, where] = value
    logits.requires_grad_()
    objective, own = guided_loss(logits, logits, torch.tensor([0, 1]), torch.zeros(3, 3))
    objective.backward()
    assert own.isnan()
    assert logits.grad is not None
    assert logits.grad[1].isnan().all()
    assert logits.grad[0].isfinite().all()


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_that_is_no_class_is_refused(label: int) -> None:
    logits = torch.zeros(2, 3, requires_grad=True)
    with pytest.raises(IndexError, match=r"not in 0\.\.2"):
        guided_loss(logits, logits, torch.tensor([0, label]), torch.zeros(3, 3))


def _wide(tensor: Tensor) -> Tensor:
    """The same numbers with gaps between them."""
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


OTHERWISE: dict[str, Any] = {
    "64-bit numbers": lambda model, x, y, guide: (model.double(), x.double(), y, guide.double()),
    "64-bit guide": lambda model, x, y, guide: (model, x, y, guide.double()),
    "labels with gaps": lambda model, x, y, guide: (model, x, _wide(y), guide),
    "guide with gaps": lambda model, x, y, guide: (model, x, y, _wide(guide)),
    "features that do not learn": lambda model, x, y, guide: (
        model.extractor.requires_grad_(requires_grad=False) and model, x, y, guide
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", OTHERWISE)
def test_anything_else_is_left_to_torch(change: str) -> None:
    plain = world(10, 10, 7, "features")
    model, x, y, guide = OTHERWISE[change](*plain)
    learning = [p for p in model.parameters() if p.requires_grad]
    objective, own = loss_of(model, x, y, guide, "features")
    assert isinstance(objective, Tensor)
    objective.backward()  # type: ignore[no-untyped-call]
    for p in model.parameters():
        p.requires_grad_()
    expected, cross = slowly(model, x, y, guide, "features")
    torch.testing.assert_close(own.detach().double(), cross, rtol=1e-6, atol=1e-6)
    for p, gradient in zip(learning, expected[-len(learning) :], strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.grad.double(), gradient, rtol=1e-5, atol=1e-6)


def test_logits_that_do_not_learn_are_left_to_torch() -> None:
    features = torch.ones(2, 4, requires_grad=True)
    objective, own = guided_loss(torch.zeros(2, 3), features, torch.tensor([0, 1]), torch.zeros(3, 4))
    objective.backward()
    torch.testing.assert_close(features.grad, torch.full((2, 4), 0.25))
    assert own.item() == pytest.approx(math.log(3))


@pytest.mark.parametrize("which", ["logits", "features"])
def test_outputs_with_gaps_are_left_to_torch(which: str) -> None:
    model, x, y, guide = world(10, 10, 7, "features")
    features, logits = model(x)
    outputs = {"logits": logits, "features": features}
    outputs[which] = _wide(outputs[which])
    objective, _ = guided_loss(outputs["logits"], outputs["features"], y, guide)
    objective.backward()
    expected, _ = slowly(model, x, y, guide, "features")
    for p, gradient in zip(model.parameters(), expected, strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.grad.double(), gradient, rtol=1e-5, atol=1e-6)


def test_a_guide_that_learns_gets_its_gradient() -> None:
    features, guide = torch.ones(2, 4, requires_grad=True), torch.zeros(3, 4, requires_grad=True)
    objective, _ = guided_loss(torch.zeros(2, 3, requires_grad=True), features, torch.tensor([0, 1]), guide)
    objective.backward()
    torch.testing.assert_close(guide.grad, torch.tensor([-0.25, -0.25, 0.0])[:, None].expand(3, 4))


def test_a_guide_with_fewer_rows_than_classes_is_left_to_torch() -> None:
    logits, features = torch.zeros(2, 5, requires_grad=True), torch.ones(2, 4, requires_grad=True)
    objective, own = guided_loss(logits, features, torch.tensor([0, 1]), torch.zeros(3, 4))
    objective.backward()
    torch.testing.assert_close(logits.grad, 0.1 - 0.5 * torch.eye(5)[:2])
    assert own.item() == pytest.approx(math.log(5))


REFUSED: dict[str, tuple[tuple[int, int], Tensor, tuple[int, int]]] = {
    "a guide of another width": ((2, 3), torch.tensor([0, 1]), (3, 4)),
    "more samples than labels": ((3, 3), torch.tensor([0, 1]), (3, 3)),
    "a column of labels": ((2, 3), torch.tensor([[0], [1]]), (3, 3)),
    "labels of another type": ((2, 3), torch.tensor([0, 1], dtype=torch.int32), (3, 3)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_torch_refuses_is_refused(case: str) -> None:
    shape, y, guide = REFUSED[case]
    logits = torch.zeros(shape, requires_grad=True)
    with pytest.raises((RuntimeError, ValueError), match=r"size|Long|[Ii]ndex|target"):
        guided_loss(logits, logits, y, torch.zeros(guide))


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", ["small_cnn", "small_googlenet", "small_mobilenet", "small_resnet", "cnn4"])
def test_networks_take_the_fast_way_in_both_layouts(name: str, layout: torch.memory_format, space: str) -> None:
    model: nn.Module = build_model(name, classes=10, image_shape=(3, 32, 32)).to(memory_format=layout)
    x, y = torch.randn(2, 3, 32, 32).contiguous(memory_format=layout), torch.tensor([3, 1])
    guide = torch.zeros(10, 10 if space == "logits" else 512)
    objective, _ = loss_of(model, x, y, guide, space)
    assert isinstance(objective, KnownGradients)
