"""Four small networks that mirror the paper's group HtFE_4 in miniature, for laptops, tests and first steps.

A training step on ten 3 x 32 x 32 images takes a few milliseconds on one CPU thread, so that whole federations run in
minutes. They differ in kind as the originals do: a plain CNN, inception blocks with dropout, inverted residuals over
depthwise convolutions, and residual blocks; all but the CNN use BatchNorm.
"""

from __future__ import annotations

from torch import nn
from torchvision.models.googlenet import BasicConv2d, Inception
from torchvision.models.mobilenetv2 import InvertedResidual
from torchvision.models.resnet import BasicBlock
from torchvision.ops.misc import Conv2dNormActivation

from fedl2g.models.architectures import Builder, ImageShape
from fedl2g.models.split import FeaturePool, SplitModel


def small_cnn(classes: int, image_shape: ImageShape, feature_dim: int) -> SplitModel:
    """The smallest: two strided 5x5 convolutions and one hidden layer; also the auxiliary model of FML and its kin."""
    extractor = nn.Sequential(
        nn.Conv2d(image_shape[0], 16, kernel_size=5, stride=2, padding=2),
        nn.ReLU(inplace=True),
        nn.Conv2d(16, 32, kernel_size=5, stride=2, padding=2),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 128),
        nn.ReLU(inplace=True),
        FeaturePool(feature_dim),
    )
    return SplitModel(extractor, nn.Linear(feature_dim, classes))


def small_googlenet(classes: int, image_shape: ImageShape, feature_dim: int) -> SplitModel:
    """Two inception blocks behind a strided stem, then dropout."""
    extractor = nn.Sequential(
        BasicConv2d(image_shape[0], 16, kernel_size=3, stride=2, padding=1),
        nn.MaxPool2d(3, stride=2, padding=1),
        Inception(16, 16, 16, 32, 8, 8, 8),
        nn.MaxPool2d(3, stride=2, padding=1),
        Inception(64, 32, 32, 64, 8, 16, 16),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.2),
        FeaturePool(feature_dim),
    )
    return SplitModel(extractor, nn.Linear(feature_dim, classes))


def small_mobilenet(classes: int, image_shape: ImageShape, feature_dim: int) -> SplitModel:
    """Inverted residuals with depthwise convolutions behind a strided stem, then dropout."""
    extractor = nn.Sequential(
        Conv2dNormActivation(image_shape[0], 16, stride=2, activation_layer=nn.ReLU6),
        InvertedResidual(16, 24, stride=2, expand_ratio=3),
        InvertedResidual(24, 24, stride=1, expand_ratio=3),
        InvertedResidual(24, 40, stride=2, expand_ratio=3),
        Conv2dNormActivation(40, 128, kernel_size=1, activation_layer=nn.ReLU6),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.2),
        FeaturePool(feature_dim),
    )
    return SplitModel(extractor, nn.Linear(feature_dim, classes))


def small_resnet(classes: int, image_shape: ImageShape, feature_dim: int) -> SplitModel:
    """Three residual blocks behind a strided stem."""
    extractor = nn.Sequential(
        Conv2dNormActivation(image_shape[0], 16, stride=2),
        BasicBlock(16, 16),
        _widening_block(16, 32),
        _widening_block(32, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        FeaturePool(feature_dim),
    )
    return SplitModel(extractor, nn.Linear(feature_dim, classes))


def _widening_block(inputs: int, outputs: int) -> BasicBlock:
    shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, kernel_size=1, stride=2, bias=False), nn.BatchNorm2d(outputs))
    return BasicBlock(inputs, outputs, stride=2, downsample=shortcut)


BUILDERS: dict[str, Builder] = {
    "small_cnn": small_cnn,
    "small_googlenet": small_googlenet,
    "small_mobilenet": small_mobilenet,
    "small_resnet": small_resnet,
}
