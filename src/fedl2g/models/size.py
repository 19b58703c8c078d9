"""How large a network is, without its weights in memory."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import torch
from torch import nn

from fedl2g import rng
from fedl2g.models.build import build_model
from fedl2g.models.split import ImageShape
from fedl2g.references import is_reference


def smallest(names: Iterable[str], *, classes: int, image_shape: ImageShape) -> str:
    """The architecture with the fewest parameters at this image size; of equal ones the first."""
    distinct = list(dict.fromkeys(names))
    if len(distinct) == 1:
        return distinct[0]
    return min(distinct, key=lambda name: parameters_of(name, classes, image_shape))


def parameters_of(name: str, classes: int, image_shape: ImageShape) -> int:
    """The number of parameters of a network with these classes and images."""
    if not is_reference(name):
        return _of_catalog(name, classes, image_shape)
    with rng.seeded(0, "size"):  # a user's factory may not work on the meta device
        return count(build_model(name, classes=classes, image_shape=image_shape))


@cache
def _of_catalog(name: str, classes: int, image_shape: ImageShape) -> int:
    with torch.device("meta"):
        return count(build_model(name, classes=classes, image_shape=image_shape))


def count(network: nn.Module) -> int:
    """The number of parameters."""
    return sum(parameter.numel() for parameter in network.parameters())
