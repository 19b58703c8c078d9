"""The smallest network of a group, which is the auxiliary one of FML, FedKD and FedMRL."""

from __future__ import annotations

import re
import resource
from collections.abc import Callable

import pytest
import torch

from fedl2g.errors import SettingError
from fedl2g.experiment import Experiment
from fedl2g.learning.client import Task
from fedl2g.models.build import build_model
from fedl2g.models.calibration import step_seconds
from fedl2g.models.catalog import GROUPS
from fedl2g.models.size import parameters_of, smallest
from fedl2g.schema import image_schema
from fedl2g.setup import Setup, auxiliary_architecture

WITH_AUXILIARY = ("fml", "fedkd", "fedmrl")


@pytest.mark.parametrize(("pixels", "cnn4", "auxiliary"), [(32, 924_708, "cnn4"), (64, 5_643_300, "mobilenet_v2")])
def test_the_smallest_depends_on_the_image_size(pixels: int, cnn4: int, auxiliary: str) -> None:
    """By hand: cnn4's only layer that grows with the image is the first Linear, 1,600 or 10,816 to 512."""
    shape = image_schema(3, pixels, pixels)
    flat = {32: 1600, 64: 10816}[pixels]
    assert cnn4 == (3 * 32 + 32 * 64) * 25 + 32 + 64 + (flat + 1) * 512 + 513 * 100
    assert parameters_of("cnn4", 100, shape) == cnn4
    assert parameters_of("mobilenet_v2", 100, shape) == 2_275_172
    for group in ("htfe4", "htfe8"):
        assert smallest(GROUPS[group], classes=100, inputs=shape) == auxiliary


def test_of_equal_networks_the_first_is_taken() -> None:
    assert smallest(("resnet4", "small_cnn", "small_cnn"), classes=10, inputs=image_schema(3, 16, 16)) == "small_cnn"
    assert smallest(("resnet6", "resnet6"), classes=10, inputs=image_schema(3, 16, 16)) == "resnet6"


@pytest.mark.parametrize("method", WITH_AUXILIARY)
def test_methods_with_an_auxiliary_network_take_the_smallest_or_the_named_one(
    tiny: Callable[..., Experiment], setup_of: Callable[[Experiment], Setup], method: str
) -> None:
    models = "small_resnet,small_cnn"
    assert setup_of(tiny(method=method, models=models)).task.auxiliary == "small_cnn"
    named = {"name": method, "auxiliary": "small_resnet"}
    assert setup_of(tiny(method=named, models=models)).task.auxiliary == "small_resnet"
    assert auxiliary_architecture(tiny(method="local", models=models), 10, image_schema(3, 16, 16)) == "small_resnet"


def test_a_named_auxiliary_network_has_its_own_memory_layout(tiny: Callable[..., Experiment]) -> None:
    named = {"name": "fml", "auxiliary": "small_cnn"}
    assert tiny(method=named, models="resnet6").channels_last == {"small_cnn"}
    assert tiny(method=named, models="resnet6", layout="channels_last").channels_last == {"small_cnn", "resnet6"}
    assert tiny(method=named, models="resnet6", layout="contiguous").channels_last == frozenset()


@pytest.mark.parametrize("name", ["htfe8", "cnn4,cnn4", "cnn5", " cnn4"])
def test_the_auxiliary_network_is_one_architecture(name: str) -> None:
    with pytest.raises(SettingError, match="auxiliary"):
        Experiment(method={"name": "fml", "auxiliary": name})


@pytest.mark.parametrize(
    ("name", "side", "classes", "width", "billions"),
    [
        ("small_cnn", 32, 100_000, 65_536, 6.6),
        ("small_cnn-h64", 32, 2, 10**9, 1.6 * 4),
        ("torchvision:regnet_y_400mf", 32, 100_000, 65_536, 6.6),  # it cannot be counted to the end
        ("timm:vit_7b_patch16_dinov3", 32, 2, 512, 6.7),
        ("timm:vit_7b_patch16_dinov3", 20, 2, 512, 6.7),  # it does not take images of this size either
    ],
)
def test_a_network_that_would_fill_the_memory_is_refused_before_it_is_built(
    name: str, side: int, classes: int, width: int, billions: float
) -> None:
    if name.startswith("timm:"):
        pytest.importorskip("timm")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(SettingError) as refused:
        build_model(name, classes=classes, inputs=image_schema(3, side, side), feature_dim=width)
    said = re.fullmatch(
        rf"models: {name} has (.*) billion parameters with {classes} classes and feature_dim {width}; expected at most "
        "1 billion; choose a smaller one",
        str(refused.value),
    )
    assert said is not None
    assert float(said[1]) >= billions
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KB: a gigabyte


def test_whoever_builds_a_network_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients, the server's networks, and the measurements of layouts and workers."""
    monkeypatch.setattr("fedl2g.models.build.LARGEST_NETWORK", 1000)
    inputs = image_schema(3, 32, 32)
    task = Task(10, inputs, seed=0, rounds=None, auxiliary="small_cnn")
    for build in (
        lambda: task.build_client("small_resnet", 0),
        task.build_auxiliary,
        lambda: step_seconds("small_mobilenet", classes=11, inputs=inputs, batch_size=3),
    ):
        with pytest.raises(SettingError, match="expected at most 0 billion"):
            build()


def test_counting_leaves_the_random_generator_alone() -> None:
    before = torch.get_rng_state()
    parameters_of("resnet8", 7, image_schema(3, 24, 24))
    assert torch.equal(torch.get_rng_state(), before)
