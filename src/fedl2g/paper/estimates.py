"""Estimates of the constants in the paper's assumptions, from the gradients of single samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.func import grad, vmap


def sample_gradients(
    loss: Callable[..., Tensor], parameters: Mapping[str, Tensor], samples: Sequence[Tensor]
) -> Tensor:
    """The gradient of `loss(parameters, *sample)` for every sample: a row each, parameters in their order."""
    found = vmap(grad(loss), in_dims=(None, *(0 for _ in samples)))(dict(parameters), *samples)
    return torch.cat([found[name].flatten(1) for name in parameters], dim=1)


def batch_variance(rows: Tensor, batch: int) -> float:
    """sigma^2 at a point: the variance of the mean gradient of a batch drawn with replacement."""
    return float((rows - rows.mean(0)).square().sum(1).mean() / batch)


def batch_norm(rows: Tensor, batch: int) -> float:
    """R at a point: the root of E|omega|^2, which E|omega| never exceeds, for a batch drawn with replacement."""
    return math.sqrt(float(rows.mean(0).square().sum()) + batch_variance(rows, batch))


def hessian_norm(gradient: Tensor, parameters: Sequence[Tensor], start: Tensor, iterations: int = 20) -> float:
    """L1 at a point: the spectral norm of the Hessian by power iteration; `gradient` was made with its graph."""
    vector, norm = start, 0.0
    for _ in range(iterations):
        vector = vector / vector.norm()
        parts = torch.autograd.grad(gradient, parameters, grad_outputs=vector, retain_graph=True)
        vector = torch.cat([part.flatten() for part in parts])
        norm = float(vector.norm())
    return norm
