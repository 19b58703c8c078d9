"""Four small networks that mirror the paper's group HtFE_4 in miniature, for laptops, tests and first steps.

A training step on ten 3 x 32 x 32 images takes a few milliseconds on one CPU thread, so that whole federations run in
minutes. They differ in kind as the originals do: a plain CNN, inception blocks with dropout, inverted residuals over
depthwise convolutions, and residual blocks; all but the CNN use BatchNorm.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.googlenet import BasicConv2d, Inception
from torchvision.models.mobilenetv2 import InvertedResidual
from torchvision.models.resnet import BasicBlock
from torchvision.ops.misc import Conv2dNormActivation

from fedl2g.models.architectures import Builder, ImageShape
from fedl2g.models.split import FeaturePool, SplitModel


def small_cnn(classes: int, image_shape: ImageShape, feature_dim: int) -> SplitModel:
    """Two convolutions with pooling: the smallest and fastest, since FML and its kin also exchange it every round."""
    extractor = nn.Sequential(
        nn.Conv2d(image_shape[0], 16, kernel_size=5, stride=2, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(inplace=True),
        nn.AdaptiveMaxPool2d(4),
        nn.Flatten(),
        FeaturePool(feature_dim),
    )
    return SplitModel(extractor, nn.Linear(feature_dim, classes))


def small_googlenet(classes: int, image_shape: ImageShape, feature_dim: int) -> SplitModel:
    """One inception block behind a strided stem, then dropout."""
    extractor = nn.Sequential(
        BasicConv2d(image_shape[0], 16, kernel_size=3, stride=2, padding=1),
        nn.MaxPool2d(3, stride=2, padding=1),
        Inception(16, 32, 16, 64, 8, 16, 16),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        FeaturePool(feature_dim),
    )
    return SplitModel(extractor, nn.Linear(feature_dim, classes))


def small_mobilenet(classes: int, image_shape: ImageShape, feature_dim: int) -> SplitModel:
    """Two inverted residuals with depthwise convolutions behind a strided stem, then dropout."""
    extractor = nn.Sequential(
        Conv2dNormActivation(image_shape[0], 16, stride=2, activation_layer=nn.ReLU6),
        InvertedResidual(16, 24, stride=2, expand_ratio=1),
        InvertedResidual(24, 64, stride=2, expand_ratio=3),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        FeaturePool(feature_dim),
    )
    return SplitModel(extractor, nn.Linear(feature_dim, classes))


def small_resnet(classes: int, image_shape: ImageShape, feature_dim: int) -> SplitModel:
    """Two residual blocks behind a strided stem."""
    extractor = nn.Sequential(
        Conv2dNormActivation(image_shape[0], 16, stride=2),
        nn.MaxPool2d(3, stride=2, padding=1),
        BasicBlock(16, 16),
        BasicBlock(16, 32, stride=2, downsample=_ThinnedShortcut(added_channels=16)),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        FeaturePool(feature_dim),
    )
    return SplitModel(extractor, nn.Linear(feature_dim, classes))


class _ThinnedShortcut(nn.Module):
    """The shortcut without parameters of the original Cifar ResNets: every second pixel, new channels zero."""

    def __init__(self, added_channels: int) -> None:
        super().__init__()
        self.added_channels = added_channels

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.added_channels))


BUILDERS: dict[str, Builder] = {
    "small_cnn": small_cnn,
    "small_googlenet": small_googlenet,
    "small_mobilenet": small_mobilenet,
    "small_resnet": small_resnet,
}
