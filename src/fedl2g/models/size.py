"""How large a network is, without its weights in memory."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import torch
from torch import nn

from fedl2g import rng
from fedl2g.models.build import build_model
from fedl2g.references import is_reference
from fedl2g.schema import Schema


def smallest(names: Iterable[str], *, classes: int, inputs: Schema, feature_dim: int = 512) -> str:
    """The architecture with the fewest parameters at this image size; of equal ones the first."""
    distinct = list(dict.fromkeys(names))
    if len(distinct) == 1:
        return distinct[0]
    return min(distinct, key=lambda name: parameters_of(name, classes, inputs, feature_dim))


def parameters_of(name: str, classes: int, inputs: Schema, feature_dim: int = 512) -> int:
    """The number of parameters of a network with these classes and images."""
    if not is_reference(name):
        return _without_weights(name, classes, inputs, feature_dim)
    with rng.seeded(0, "size"):  # the code of others may not work on the meta device
        return count(build_model(name, classes=classes, inputs=inputs, feature_dim=feature_dim))


@cache
def _without_weights(name: str, classes: int, inputs: Schema, feature_dim: int) -> int:
    with rng.seeded(0, "size"), torch.device("meta"):
        return count(build_model(name, classes=classes, inputs=inputs, feature_dim=feature_dim))


def count(network: nn.Module) -> int:
    """The number of parameters."""
    return sum(parameter.numel() for parameter in network.parameters())
