"""The fourteen architectures of the paper, built by torchvision and split at one common feature width."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import cast

from torch import Tensor, nn
from torchvision import models
from torchvision.models.resnet import BasicBlock, ResNet

from fedl2g.models.split import Builder, FeaturePool, SplitModel, replace_head, require_pixels
from fedl2g.schema import Schema


def cnn4(classes: int, inputs: Schema, feature_dim: int) -> SplitModel:
    """The paper's four-layer CNN: two 5x5 convolutions with pooling, one hidden layer of 512, the head."""
    channels, height, width = inputs.shape
    require_pixels("cnn4", inputs, 16)
    rows, columns = (((side - 4) // 2 - 4) // 2 for side in (height, width))
    extractor = nn.Sequential(
        nn.Conv2d(channels, 32, kernel_size=5),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, kernel_size=5),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * rows * columns, 512),
        nn.ReLU(inplace=True),
        FeaturePool(feature_dim),
    )
    return SplitModel(extractor, nn.Linear(feature_dim, classes))


def shallow_resnet(stages: int, classes: int, inputs: Schema, feature_dim: int) -> SplitModel:
    """A ResNet of one BasicBlock per stage, with the stages after the first `stages` left out."""
    network = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=classes)
    for stage in range(stages + 1, 5):
        setattr(network, f"layer{stage}", nn.Identity())
    return _split_resnet(network, classes, inputs, feature_dim)


def deep_resnet(build: Callable[..., ResNet], classes: int, inputs: Schema, feature_dim: int) -> SplitModel:
    """One of torchvision's ResNets with its ImageNet stem."""
    return _split_resnet(build(weights=None, num_classes=classes), classes, inputs, feature_dim)


def _split_resnet(network: ResNet, classes: int, inputs: Schema, feature_dim: int) -> SplitModel:
    set_channels(network, "conv1", inputs.shape[0], he_normal)
    replace_head(network, "fc", FeaturePool(feature_dim))
    return SplitModel(network, nn.Linear(feature_dim, classes))


def googlenet(classes: int, inputs: Schema, feature_dim: int) -> SplitModel:
    """torchvision's GoogLeNet without auxiliary outputs; its dropout belongs to the extractor."""
    require_pixels("googlenet", inputs, 15)
    network = models.googlenet(weights=None, num_classes=classes, aux_logits=False, init_weights=True)
    set_channels(network.conv1, "conv", inputs.shape[0], partial(nn.init.trunc_normal_, std=0.01))
    replace_head(network, "fc", FeaturePool(feature_dim))
    return SplitModel(network, nn.Linear(feature_dim, classes))


def mobilenet_v2(classes: int, inputs: Schema, feature_dim: int) -> SplitModel:
    """torchvision's MobileNetV2; its dropout belongs to the extractor."""
    network = models.mobilenet_v2(weights=None, num_classes=classes)
    set_channels(network.features[0], "0", inputs.shape[0], he_normal)
    replace_head(network, "classifier", FeaturePool(feature_dim))
    return SplitModel(network, nn.Linear(feature_dim, classes))


def vision_transformer(patch: int, classes: int, inputs: Schema, feature_dim: int) -> SplitModel:
    """torchvision's ViT-B for images of any size, with the hidden layer of 768 in its head.

    The transformer needs a square whose side is a multiple of the patch size. Other images are centred on the smallest
    such square and padded with zeros, without rescaling (28 x 28 becomes 32 x 32).
    """
    build = {16: models.vit_b_16, 32: models.vit_b_32}[patch]
    channels, height, width = inputs.shape
    side = -(-max(height, width) // patch) * patch
    network = build(weights=None, num_classes=classes, image_size=side)
    fan_in = channels * patch * patch
    set_channels(network, "conv_proj", channels, partial(nn.init.trunc_normal_, std=fan_in**-0.5))
    replace_head(network, "heads", FeaturePool(feature_dim))
    hidden = network.hidden_dim
    head = nn.Sequential(nn.Linear(feature_dim, hidden), nn.Tanh(), nn.Linear(hidden, classes))
    if (height, width) == (side, side):
        return SplitModel(network, head)
    top, left = (side - height) // 2, (side - width) // 2
    pad = nn.ZeroPad2d((left, side - width - left, top, side - height - top))
    return SplitModel(nn.Sequential(OrderedDict(pad=pad, network=network)), head)


def set_channels(parent: nn.Module, name: str, channels: int, initialise: Callable[[Tensor], object]) -> None:
    """Replace the first convolution by one with `channels` inputs, initialised like torchvision's original."""
    old = cast(nn.Conv2d, getattr(parent, name))
    if channels == old.in_channels:
        return
    new = nn.Conv2d(
        channels,
        old.out_channels,
        cast(tuple[int, int], old.kernel_size),
        cast(tuple[int, int], old.stride),
        cast(tuple[int, int], old.padding),
        bias=old.bias is not None,
    )
    initialise(new.weight)
    if new.bias is not None:
        nn.init.zeros_(new.bias)
    setattr(parent, name, new)


he_normal = partial(nn.init.kaiming_normal_, mode="fan_out", nonlinearity="relu")

BUILDERS: dict[str, Builder] = {
    "cnn4": cnn4,
    "resnet4": partial(shallow_resnet, 1),
    "resnet6": partial(shallow_resnet, 2),
    "resnet8": partial(shallow_resnet, 3),
    "resnet10": partial(shallow_resnet, 4),
    "resnet18": partial(deep_resnet, models.resnet18),
    "resnet34": partial(deep_resnet, models.resnet34),
    "resnet50": partial(deep_resnet, models.resnet50),
    "resnet101": partial(deep_resnet, models.resnet101),
    "resnet152": partial(deep_resnet, models.resnet152),
    "googlenet": googlenet,
    "mobilenet_v2": mobilenet_v2,
    "vit_b_16": partial(vision_transformer, 16),
    "vit_b_32": partial(vision_transformer, 32),
}
