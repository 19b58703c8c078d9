"""The optimiser of every method: SGD whose step is bounded by the norm of the gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

_TINY = 1e-6  # added to the norm, as `torch.nn.utils.clip_grad_norm_` does
_LARGE = 2**15  # entries; in one sum of so many squares digits are lost: the norm of a million is wrong by 1e-5


class ClippedSGD:
    """Plain SGD with the norm of all its gradients clipped: no momentum, no weight decay, no schedule.

    One pass over the gradients for the norm and one for the move, with the rate lr * min(1, clip / (norm + 1e-6)).
    Loops, because they take less time than `torch.optim.SGD`, fused or not, on small networks, and no more on large
    ones. A step that is not clipped gives the bits of `p.add_(gradient, alpha=-lr)`. As with
    `torch.nn.utils.clip_grad_norm_`, a NaN in one gradient reaches every parameter, and gradients whose norm overflows
    move nothing.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, clip: float = math.inf) -> None:
        self.parameters = [p for p in dict.fromkeys(parameters) if p.requires_grad]
        self.lr = lr
        self.clip = clip

    def step(self) -> None:
        """Move the parameters against their gradients and forget the gradients."""
        moving = [(p, p.grad) for p in self.parameters if p.grad is not None]
        with torch.no_grad():
            if self.clip < math.inf and moving:
                self._move_clipped(moving)
            else:
                for p, gradient in moving:
                    p.add_(gradient, alpha=-self.lr)
        for p, _ in moving:
            p.grad = None

    def _move_clipped(self, moving: list[tuple[nn.Parameter, Tensor]]) -> None:
        norm = vector_norm(torch.stack([_norm(gradient) for _, gradient in moving]))
        if norm.is_cpu:
            rate = self.lr * min(self.clip / (norm.item() + _TINY), 1.0)  # in this order NaN stays NaN
            for p, gradient in moving:
                p.add_(gradient, alpha=-rate)
        else:  # the norm stays on the device: reading it would make every step wait
            share = (self.clip / (norm + _TINY)).clamp(max=1.0)
            for p, gradient in moving:
                p.addcmul_(gradient, share, value=-self.lr)


def _norm(gradient: Tensor) -> Tensor:
    """The norm of one gradient; a large one by rows, which are added up more exactly and as fast."""
    rows = gradient
    if gradient.ndim > 1 and gradient.numel() >= _LARGE:
        rows = vector_norm(gradient, dim=tuple(range(1, gradient.ndim)))
    norm: Tensor = vector_norm(rows)
    return norm
