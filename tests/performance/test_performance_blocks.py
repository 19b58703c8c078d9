"""The small networks' blocks are torchvision's, without the time that importing it takes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torchvision.models.googlenet import BasicConv2d
from torchvision.models.googlenet import Inception as OriginalInception
from torchvision.models.mobilenetv2 import InvertedResidual as OriginalInvertedResidual
from torchvision.models.resnet import BasicBlock as OriginalBasicBlock
from torchvision.ops.misc import Conv2dNormActivation

from fedl2g.models.blocks import BasicBlock, ConvNorm, ConvNormAct, Inception, InvertedResidual

PAIRS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "unit": (
        lambda: ConvNorm(4, 8, 3, stride=2, padding=1),
        lambda: BasicConv2d(4, 8, kernel_size=3, stride=2, padding=1),
    ),
    "inception": (lambda: Inception(4, 3, 2, 5, 2, 3, 2), lambda: OriginalInception(4, 3, 2, 5, 2, 3, 2)),
    "stem": (lambda: ConvNormAct(4, 8, stride=2), lambda: Conv2dNormActivation(4, 8, stride=2)),
    "narrow": (lambda: InvertedResidual(4, 6, 2, 1), lambda: OriginalInvertedResidual(4, 6, 2, 1)),
    "wide": (lambda: InvertedResidual(4, 4, 1, 3), lambda: OriginalInvertedResidual(4, 4, 1, 3)),
    "residual": (lambda: BasicBlock(4, 4), lambda: OriginalBasicBlock(4, 4)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_equal_weights_names_and_outputs(name: str) -> None:
    built = []
    for make in PAIRS[name]:
        torch.manual_seed(7)
        built.append(make())
    ours, theirs = built
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True))
    x = torch.randn(3, 4, 8, 8)
    outputs = [module(x) for module in built]
    assert torch.equal(*outputs)
    gradients = [
        torch.autograd.grad(y.square().sum(), list(m.parameters())) for m, y in zip(built, outputs, strict=True)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_small_networks_do_not_load_torchvision() -> None:
    program = """
import sys
from fedl2g.models import build_model
from fedl2g.schema import image_schema
for name in ("small_cnn", "small_googlenet", "small_mobilenet", "small_resnet"):
    build_model(name, classes=10, inputs=image_schema(1, 28, 28))
import fedl2g.runs.runner, fedl2g.engines.worker
assert "torchvision" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
