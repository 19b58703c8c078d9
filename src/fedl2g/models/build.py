"""Builds networks by name: an architecture of the catalog, or a user's own factory; and says how large one may be."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from fedl2g import rng, session
from fedl2g.errors import SettingError
from fedl2g.models import sensor, small, table, text
from fedl2g.models.catalog import check_kind, is_hub, resolve_models, split_head
from fedl2g.models.split import Builder, SplitModel, split_model
from fedl2g.references import is_reference, load_reference, parse_reference
from fedl2g.schema import Schema

LARGEST_NETWORK = 10**9  # parameters; the state of a larger one would hardly fit into a checkpoint's files


def build_model(name: str, *, classes: int, inputs: Schema, feature_dim: int = 512) -> SplitModel:
    """Build a newly initialised network with features of width `feature_dim` and `classes` logits.

    `name` is an architecture of the catalog, a network of another package ("timm:NAME", "torchvision:NAME") or the
    user's factory, "package.module:function[#head attribute]". The weights are drawn from torch's global generator:
    seed it first for repeatable ones. `inputs` says what one sample is, such as
    `fedl2g.schema.image_schema(3, 32, 32)`.
    """
    for what, value in (("classes", classes), ("feature_dim", feature_dim)):
        if value < 1:
            raise SettingError(f"models: {what} is {value}; expected at least 1")
    if is_reference(name):
        return _build_with_factory(name, classes, inputs, feature_dim)
    check_kind(name, inputs.kind)
    # The name may come from a run directory made elsewhere, or from a coordinator: it must not fill the memory.
    parameters = max(_registered(name, classes, inputs, feature_dim), (feature_dim + 1) * classes)
    if parameters > LARGEST_NETWORK:
        raise SettingError(
            f"models: {name} has {parameters / 1e9:.1f} billion parameters with {classes} classes and feature_dim "
            f"{feature_dim}; expected at most {LARGEST_NETWORK / 1e9:.0f} billion; choose a smaller one"
        )
    return _build(name, classes, inputs, feature_dim)


@cache
def _registered(name: str, classes: int, inputs: Schema, feature_dim: int) -> int:
    """How many parameters are made when the network is built, counted without their memory.

    Also of a network that turns out not to take such inputs. A few of torchvision's cannot be built to the end in this
    way (none of them is near the limit): of these it counts those before.
    """
    counts: list[int] = []

    def made(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        counts.append(parameter.numel())

    hook = register_module_parameter_registration_hook(made)
    try:
        with rng.seeded(0, "size"), torch.device("meta"):
            _build(name, classes, inputs, feature_dim)
    except SettingError:
        pass  # building it says what is wrong
    finally:
        hook.remove()
    return sum(counts)


def _build(name: str, classes: int, inputs: Schema, feature_dim: int) -> SplitModel:
    if is_hub(name):
        from fedl2g.models.hub import build_from_hub  # lazily: torchvision takes as long to import as torch

        return build_from_hub(name, classes, inputs, feature_dim)
    resolved = resolve_models(name)
    if resolved != (name,):
        raise SettingError(f"models: {name!r} names {len(resolved)} models; expected one of {', '.join(resolved)}")
    architecture, hidden = split_head(name)
    model = _builder(architecture)(classes, inputs, feature_dim)
    if hidden is not None:
        model.head = nn.Sequential(nn.Linear(feature_dim, hidden), nn.ReLU(), nn.Linear(hidden, classes))
    return model


def _builder(name: str) -> Builder:
    builders: dict[str, Builder] = {**small.BUILDERS, **sensor.BUILDERS, **table.BUILDERS, **text.BUILDERS}
    if name in builders:
        return builders[name]
    from fedl2g.models import architectures  # lazily: torchvision takes as long to import as torch

    return architectures.BUILDERS[name]


def _build_with_factory(name: str, classes: int, inputs: Schema, feature_dim: int) -> SplitModel:
    factory = load_reference(name)
    if not callable(factory):
        raise SettingError(f"models: {name!r} is not a function; expected one that returns a network")
    (shown,) = session.readable((name,))
    offered = {"classes": classes, "inputs": inputs, "input_shape": inputs.shape, "feature_dim": feature_dim}
    if inputs.kind == "image":
        offered["image_shape"] = inputs.shape
    try:
        network = factory(**_accepted(factory, offered))
    except SettingError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise SettingError(
            f"models: the factory {shown!r} failed ({type(error).__name__}: {error}); correct it"
        ) from error
    try:
        return split_model(
            network,
            classes=classes,
            feature_dim=feature_dim,
            inputs=inputs,
            head_name=parse_reference(name).attribute,
        )
    except SettingError as error:
        raise SettingError(f"models: {shown!r} cannot be used: {error}") from error


def _accepted(factory: Callable[..., Any], offered: dict[str, Any]) -> dict[str, Any]:
    """The offered arguments that the factory names; not for a bare **kwargs, which usually forwards them elsewhere."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return {}
    positional_only = inspect.Parameter.POSITIONAL_ONLY
    return {key: offered[key] for key in offered if key in parameters and parameters[key].kind is not positional_only}
