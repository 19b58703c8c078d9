"""Losses of the methods, and terms of them that several have."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, log_softmax

_MEAN = 1  # the mean over all entries, in ATen's numbers


class Objective(Protocol):
    """What training minimises: a tensor of one number, or what knows its gradients otherwise."""

    def backward(self) -> None:
        """Add the gradients of the parameters."""


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """The mean of (output - target)^2 over all entries: `mse_loss` for two tensors of one shape.

    `torch.nn.functional.mse_loss` broadcasts them first, which takes half as long again: on the smallest networks a
    hundredth of a training step.
    """
    return torch._C._nn.mse_loss(output, target, _MEAN)  # type: ignore[arg-type]  # its stub has the name


def kl_divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(softmax teacher || softmax student), mean over the batch; no gradient reaches the teacher."""
    target = log_softmax(teacher.detach(), dim=1)
    return kl_div(log_softmax(student, dim=1), target, reduction="batchmean", log_target=True)


def guided_loss(logits: Tensor, z: Tensor, y: Tensor, guide: Tensor) -> tuple[Objective, Tensor]:
    """CE(logits, y) + MSE(z, guide[y]), and the first term alone; z is the logits or the features."""
    if _lie_plainly(logits, z, y, guide):
        from fedl2g.learning.known_gradients import KnownGradients  # compiled on import, in a second

        known = KnownGradients(logits, z, y, guide)
        return known, known.cross_entropy
    own = cross_entropy(logits, y)
    return own + squared_error(z, guide.index_select(0, y)), own


def _lie_plainly(logits: Tensor, z: Tensor, y: Tensor, guide: Tensor) -> bool:
    """Whether all are on the CPU without gaps, of the usual types and shapes, and only the outputs want gradients."""
    return (
        logits.requires_grad
        and z.requires_grad
        and not guide.requires_grad
        and y.dtype is torch.int64
        and y.dim() == 1
        and logits.dtype is z.dtype is guide.dtype is torch.float32
        and all(t.is_cpu and t.is_contiguous() for t in (logits, z, y, guide))
        and logits.shape == (len(y), len(guide))
        and z.shape == (len(y), guide.shape[1])
    )
