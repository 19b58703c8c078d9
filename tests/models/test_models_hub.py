"""Networks of timm and torchvision by name, split at the common width, without weights."""

from __future__ import annotations

import pytest
import torch

from fedl2g.errors import SettingError
from fedl2g.models import build_model
from fedl2g.models.catalog import resolve_models
from fedl2g.schema import Schema, image_schema

SHAPE = image_schema(1, 32, 32)


@pytest.mark.parametrize("name", ["timm:resnet10t", "timm:vit_tiny_patch16_224", "torchvision:shufflenet_v2_x0_5"])
def test_a_network_by_name_has_the_common_width(name: str) -> None:
    if name.startswith("timm"):
        pytest.importorskip("timm", reason="the optional extra `hub` is not installed")
    built = []
    for _ in range(2):
        torch.manual_seed(4)
        built.append(build_model(name, classes=3, inputs=SHAPE, feature_dim=64))
    features, logits = built[0].eval()(torch.rand(2, *SHAPE.shape))
    assert (tuple(features.shape), tuple(logits.shape)) == ((2, 64), (2, 3))
    for one, other in zip(*(network.state_dict().values() for network in built), strict=True):
        assert torch.equal(one, other)  # the generator decides, not a file of weights


def test_names_are_checked_and_need_images() -> None:
    assert resolve_models("torchvision:alexnet,cnn4") == ("torchvision:alexnet", "cnn4")
    with pytest.raises(SettingError, match="'torchvision:a b' is not"):
        resolve_models("torchvision:a b")
    with pytest.raises(SettingError, match="no network has this name; did you mean 'alexnet'"):
        build_model("torchvision:alexnett", classes=3, inputs=SHAPE)
    with pytest.raises(SettingError, match="torchvision:alexnet takes images, but the data are signals"):
        build_model("torchvision:alexnet", classes=3, inputs=Schema("signal", (3, 40)))
    with pytest.raises(SettingError, match=r"torchvision:alexnet cannot be .*choose another|cannot be used"):
        build_model("torchvision:alexnet", classes=3, inputs=SHAPE)
