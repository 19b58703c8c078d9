"""Names of models: groups, lists, factories, and what a typing error leads to."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from fedl2g.errors import SettingError
from fedl2g.models.build import build_model
from fedl2g.models.catalog import ARCHITECTURES, GROUPS, has_equal_heads, resolve_models, split_head
from fedl2g.models.size import count
from fedl2g.schema import image_schema


def test_groups_are_those_of_the_paper() -> None:
    assert GROUPS["htfe2"] == ("cnn4", "resnet18")
    assert GROUPS["htfe3"] == ("resnet10", "resnet18", "resnet34")
    assert GROUPS["htfe4"] == ("cnn4", "googlenet", "mobilenet_v2", "resnet18")
    assert GROUPS["htfe8"] == (*GROUPS["htfe4"], "resnet34", "resnet50", "resnet101", "resnet152")
    assert GROUPS["htfe9"] == tuple(f"resnet{depth}" for depth in (4, 6, 8, 10, 18, 34, 50, 101, 152))
    assert GROUPS["htm10"] == (*GROUPS["htfe8"], "vit_b_16", "vit_b_32")
    assert GROUPS["htfe8-htc4"] == (  # client i: extractor i mod 8, head i mod 4
        *("cnn4", "googlenet-h512", "mobilenet_v2-h256", "resnet18-h128"),
        *("resnet34", "resnet50-h512", "resnet101-h256", "resnet152-h128"),
    )
    assert GROUPS["res34-htc4"] == ("resnet34", "resnet34-h512", "resnet34-h256", "resnet34-h128")
    assert {split_head(name)[0] for names in GROUPS.values() for name in names} == set(ARCHITECTURES)
    assert len(ARCHITECTURES) == len(set(ARCHITECTURES)) == 14 + 4 * 4


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("htfe2", ("cnn4", "resnet18")),
        ("cnn4", ("cnn4",)),
        ("cnn4, resnet18 ,cnn4", ("cnn4", "resnet18", "cnn4")),
        (["cnn4", "hospital.nets:unet#classifier"], ("cnn4", "hospital.nets:unet#classifier")),
        (("htfe2", "resnet4"), ("cnn4", "resnet18", "resnet4")),
        ("nets:make", ("nets:make",)),
    ],
)
def test_resolve_models(spec: str | list[str], expected: tuple[str, ...]) -> None:
    assert resolve_models(spec) == expected


def test_unknown_names_get_the_nearest_known_one() -> None:
    with pytest.raises(SettingError, match="did you mean 'resnet18'"):
        resolve_models("cnn4,resnet_18")
    with pytest.raises(SettingError, match="did you mean 'htfe4'"):
        resolve_models("HtFE_4")


@pytest.mark.parametrize("spec", ["a.b:", ":make", "a.b:make#", "a b:make", "../nets:make", "a.b:make()", "cnn4#fc"])
def test_malformed_factories_are_explained(spec: str) -> None:
    with pytest.raises(SettingError, match=r"package\.module:function"):
        resolve_models(spec)


@pytest.mark.parametrize("spec", ["", " , ", []])
def test_no_model_at_all(spec: str | list[str]) -> None:
    with pytest.raises(SettingError, match="no model given"):
        resolve_models(spec)


def test_equal_heads() -> None:
    assert has_equal_heads(GROUPS["htfe8"])
    assert has_equal_heads(["vit_b_16", "vit_b_32"])
    assert not has_equal_heads(GROUPS["htm10"])
    assert not has_equal_heads(GROUPS["htfe8-htc4"])
    assert not has_equal_heads(GROUPS["res34-htc4"])
    assert not has_equal_heads(("cnn4", "cnn4-h512"))
    assert has_equal_heads(("cnn4-h64", "resnet18-h64"))
    assert has_equal_heads(["cnn4", "nets:make"])


def test_the_catalog_loads_without_torch() -> None:
    code = "import sys, fedl2g.models.catalog; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "name", ["cnn4-h0", "cnn4-h", "cnn4-h-1", "cnn4-h100000", "nothing-h8", "cnn4-H8", "cnn4-h8-h8"]
)
def test_wrong_widths_of_a_head_are_refused(name: str) -> None:
    with pytest.raises(SettingError, match=r"models: .* is not known"):
        resolve_models(name)


def test_a_head_with_a_hidden_layer_keeps_the_extractor() -> None:
    """Linear(512, 256) - ReLU - Linear(256, 10) in place of Linear(512, 10)."""
    plain, deep = (
        build_model(name, classes=10, inputs=image_schema(3, 32, 32)) for name in ("small_cnn", "small_cnn-h256")
    )
    assert [tuple(p.shape) for p in deep.extractor.parameters()] == [
        tuple(p.shape) for p in plain.extractor.parameters()
    ]
    assert count(deep) - count(plain) == 512 * 256 + 256 + 256 * 10 + 10 - (512 * 10 + 10)
    features, logits = deep.eval()(torch.ones(2, 3, 32, 32))
    w1, b1, w2, b2 = deep.head.parameters()
    torch.testing.assert_close(logits, (features @ w1.T + b1).clamp(min=0) @ w2.T + b2)
