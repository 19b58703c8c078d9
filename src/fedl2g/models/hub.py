"""Networks of two installed packages by their names, `timm:NAME` and `torchvision:NAME`, always without weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from fedl2g.errors import SettingError, suggestion
from fedl2g.models.architectures import he_normal, set_channels
from fedl2g.models.split import SplitModel, split_model
from fedl2g.schema import Schema


def build_from_hub(name: str, classes: int, inputs: Schema, feature_dim: int) -> SplitModel:
    """Build the network and split it; SettingError if the package has none of this name, or it takes no such images."""
    package, _, called = name.partition(":")
    channels, height, width = inputs.shape
    build = _of_timm if package == "timm" else _of_torchvision
    try:
        network = build(called, classes, channels, (height, width))
        whole = (network, nn.Linear(feature_dim, classes)) if package == "timm" else network
        return split_model(whole, classes=classes, feature_dim=feature_dim, inputs=inputs)
    except SettingError as error:
        raise SettingError(f"models: {name} cannot be used: {error}") from error
    except Exception as error:  # the packages raise errors of many kinds for images that a network cannot take
        raise SettingError(
            f"models: {name} cannot be built for images of {channels} x {height} x {width} ({error}); choose another "
            "network or image_size"
        ) from error


def _of_timm(name: str, classes: int, channels: int, size: tuple[int, int]) -> nn.Module:
    """The network without its head: it gives its pooled features."""
    try:
        import timm
    except ImportError as error:
        raise SettingError("it needs the package timm; pip install 'fedl2g[hub]'") from error
    _check_name(name, timm.list_models())

    def build(**given: Any) -> Any:
        return timm.create_model(name, pretrained=False, num_classes=0, in_chans=channels, **given)

    network: nn.Module = _first_accepted(build, {"img_size": size}, {})
    return network


def _of_torchvision(name: str, classes: int, channels: int, size: tuple[int, int]) -> nn.Module:
    from torchvision import models

    _check_name(name, models.list_models(module=models))
    without = {"aux_logits": False, "init_weights": True} if name in ("googlenet", "inception_v3") else {}

    def build(**given: Any) -> Any:
        return models.get_model(name, weights=None, num_classes=classes, **without, **given)

    network: nn.Module = _first_accepted(build, {"image_size": size[0]}, {}) if size[0] == size[1] else build()
    _take_channels(network, channels)
    return network


def _check_name(name: str, known: Iterable[str]) -> None:
    names = list(known)
    if name not in names:
        some = ", ".join(names[:: len(names) // 4])
        raise SettingError(f"no network has this name; {suggestion(name, names)}expected one such as {some}")


def _first_accepted(build: Callable[..., Any], *arguments: dict[str, Any]) -> Any:
    """What a builder gives for the first of these arguments that it takes."""
    for given in arguments[:-1]:
        try:
            return build(**given)
        except TypeError:
            continue
    return build(**arguments[-1])


def _take_channels(network: nn.Module, channels: int) -> None:
    """Give the first convolution this many input channels."""
    for path, part in network.named_modules():
        if isinstance(part, nn.Conv2d):
            owner, _, attribute = path.rpartition(".")
            set_channels(network.get_submodule(owner), attribute, channels, he_normal)
            return
