"""Loss terms shared by several methods."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import kl_div, log_softmax


def kl_divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(softmax teacher || softmax student), mean over the batch; no gradient reaches the teacher."""
    target = log_softmax(teacher.detach(), dim=1)
    return kl_div(log_softmax(student, dim=1), target, reduction="batchmean", log_target=True)
