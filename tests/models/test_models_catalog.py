"""Names of models: groups, lists, factories, and what a typing error leads to."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedl2g.errors import SettingError
from fedl2g.models.catalog import ARCHITECTURES, GROUPS, has_equal_heads, resolve_models


def test_groups_are_those_of_the_paper() -> None:
    assert GROUPS["htfe2"] == ("cnn4", "resnet18")
    assert GROUPS["htfe3"] == ("resnet10", "resnet18", "resnet34")
    assert GROUPS["htfe4"] == ("cnn4", "googlenet", "mobilenet_v2", "resnet18")
    assert GROUPS["htfe8"] == (*GROUPS["htfe4"], "resnet34", "resnet50", "resnet101", "resnet152")
    assert GROUPS["htfe9"] == tuple(f"resnet{depth}" for depth in (4, 6, 8, 10, 18, 34, 50, 101, 152))
    assert GROUPS["htm10"] == (*GROUPS["htfe8"], "vit_b_16", "vit_b_32")
    assert set().union(*GROUPS.values()) == set(ARCHITECTURES)
    assert len(ARCHITECTURES) == len(set(ARCHITECTURES)) == 14 + 4


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
    assert has_equal_heads(["cnn4", "nets:make"])


def test_the_catalog_loads_without_torch() -> None:
    code = "import sys, fedl2g.models.catalog; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
