"""Loss terms that several methods have."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax

_MEAN = 1  # the mean over all entries, in ATen's numbers


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
