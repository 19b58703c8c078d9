"""The blocks of the small networks, copied from torchvision because importing it takes as long as importing torch.

Names, order of construction and arithmetic match torchvision's, and so do the initial weights for a given seed; a test
compares them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ConvNorm(nn.Module):
    """GoogLeNet's unit: convolution, BatchNorm, ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel_size: int, stride: int = 1, padding: int = 0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel_size, stride=stride, padding=padding, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)), inplace=True)


class Inception(nn.Module):
    """GoogLeNet's block of four branches; both wide branches use 3 x 3 kernels, as torchvision's do."""

    def __init__(self, inputs: int, one: int, reduce3: int, three: int, reduce5: int, five: int, pooled: int) -> None:
        super().__init__()
        self.branch1 = ConvNorm(inputs, one, 1)
        self.branch2 = nn.Sequential(ConvNorm(inputs, reduce3, 1), ConvNorm(reduce3, three, 3, padding=1))
        self.branch3 = nn.Sequential(ConvNorm(inputs, reduce5, 1), ConvNorm(reduce5, five, 3, padding=1))
        pool = nn.MaxPool2d(3, stride=1, padding=1, ceil_mode=True)
        self.branch4 = nn.Sequential(pool, ConvNorm(inputs, pooled, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)


class ConvNormAct(nn.Sequential):
    """Convolution, BatchNorm, activation."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel_size: int = 3,
        stride: int = 1,
        groups: int = 1,
        activation: type[nn.ReLU | nn.ReLU6] = nn.ReLU,
    ) -> None:
        padding = (kernel_size - 1) // 2
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel_size, stride, padding, groups=groups, bias=False),
            nn.BatchNorm2d(outputs),
            activation(inplace=True),
        )


class InvertedResidual(nn.Module):
    """MobileNetV2's block: expand, depthwise convolution, project."""

    def __init__(self, inputs: int, outputs: int, stride: int, expand_ratio: int) -> None:
        super().__init__()
        hidden = inputs * expand_ratio
        layers: list[nn.Module] = []
        if expand_ratio != 1:
            layers.append(ConvNormAct(inputs, hidden, kernel_size=1, activation=nn.ReLU6))
        layers += [
            ConvNormAct(hidden, hidden, stride=stride, groups=hidden, activation=nn.ReLU6),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        ]
        self.conv = nn.Sequential(*layers)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return x + y if self.adds else y


class BasicBlock(nn.Module):
    """ResNet's block of two convolutions with a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1, downsample: nn.Module | None = None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += x if self.downsample is None else self.downsample(x)
        result: Tensor = self.relu(y)
        return result


class ThinnedShortcut(nn.Module):
    """The parameter-free shortcut of the original Cifar ResNets: every second pixel, new channels zero."""

    def __init__(self, added_channels: int) -> None:
        super().__init__()
        self.added_channels = added_channels

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.added_channels))
