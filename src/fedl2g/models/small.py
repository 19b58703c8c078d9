"""Four small counterparts of the paper's group HtFE_4, for laptops, tests and first steps.

A training step on ten 3 x 32 x 32 images takes a few milliseconds on one CPU thread, so that whole federations run in
minutes. Like the originals they differ in kind: a plain CNN, inception blocks with dropout, inverted residuals with
depthwise convolutions, and residual blocks; all but the CNN use BatchNorm.
"""

from __future__ import annotations

from torch import nn

from fedl2g.models.blocks import BasicBlock, ConvNorm, ConvNormAct, Inception, InvertedResidual, ThinnedShortcut
from fedl2g.models.split import Builder, FeaturePool, SplitModel, require_pixels
from fedl2g.schema import Schema


def small_cnn(classes: int, inputs: Schema, feature_dim: int) -> SplitModel:
    """Two convolutions with pooling: the smallest, and so the auxiliary model of its group."""
    require_pixels("small_cnn", inputs, 3)
    extractor = nn.Sequential(
        nn.Conv2d(inputs.shape[0], 16, kernel_size=5, stride=2, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(inplace=True),
        nn.AdaptiveMaxPool2d(4),
        nn.Flatten(),
        FeaturePool(feature_dim),
    )
    return SplitModel(extractor, nn.Linear(feature_dim, classes))


def small_googlenet(classes: int, inputs: Schema, feature_dim: int) -> SplitModel:
    """One inception block behind a strided stem, then dropout."""
    extractor = nn.Sequential(
        ConvNorm(inputs.shape[0], 16, kernel_size=3, stride=2, padding=1),
        nn.MaxPool2d(3, stride=2, padding=1),
        Inception(16, 32, 16, 64, 8, 16, 16),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        FeaturePool(feature_dim),
    )
    return SplitModel(extractor, nn.Linear(feature_dim, classes))


def small_mobilenet(classes: int, inputs: Schema, feature_dim: int) -> SplitModel:
    """Two inverted residuals with depthwise convolutions behind a strided stem, then dropout."""
    extractor = nn.Sequential(
        ConvNormAct(inputs.shape[0], 16, stride=2, activation=nn.ReLU6),
        InvertedResidual(16, 24, stride=2, expand_ratio=1),
        InvertedResidual(24, 64, stride=2, expand_ratio=3),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        FeaturePool(feature_dim),
    )
    return SplitModel(extractor, nn.Linear(feature_dim, classes))


def small_resnet(classes: int, inputs: Schema, feature_dim: int) -> SplitModel:
    """Two residual blocks behind a strided stem."""
    extractor = nn.Sequential(
        ConvNormAct(inputs.shape[0], 16, stride=2),
        nn.MaxPool2d(3, stride=2, padding=1),
        BasicBlock(16, 16),
        BasicBlock(16, 32, stride=2, downsample=ThinnedShortcut(added_channels=16)),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        FeaturePool(feature_dim),
    )
    return SplitModel(extractor, nn.Linear(feature_dim, classes))


BUILDERS: dict[str, Builder] = {
    "small_cnn": small_cnn,
    "small_googlenet": small_googlenet,
    "small_mobilenet": small_mobilenet,
    "small_resnet": small_resnet,
}
