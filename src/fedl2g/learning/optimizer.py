"""The optimizers of every method, with gradient-norm clipping: the paper's plain SGD, and torch's own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

from fedl2g.learning.moments import ADAM_SLOTS, SGD_SLOTS, Moments
from fedl2g.learning.settings import Optimizer

_TINY = 1e-6  # added to the norm, as in `torch.nn.utils.clip_grad_norm_`
_LARGE = 2**15  # entries; a single sum of more squares loses precision: 1e-5 at a million entries


class Stepper(Protocol):
    """An optimizer as the training loop uses it."""

    share: float  # of the learning rate, as the round's schedule has it

    def step(self) -> None:
        """Take one step and clear the gradients."""


class ClippedSGD:
    """Plain SGD with the norm of all its gradients clipped: no momentum, no weight decay.

    One pass over the gradients computes the norm, a second one takes the step at lr * min(1, clip / (norm + 1e-6)).
    Python loops, because they are faster than the fused kernels of `torch.optim.SGD` (figures in docs/performance.md).
    An unclipped step is bit-identical to `p.add_(gradient, alpha=-lr)`. As with `torch.nn.utils.clip_grad_norm_`, a NaN
    in one gradient spreads to every parameter, and gradients whose norm overflows change nothing.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, clip: float = math.inf) -> None:
        self.parameters = [p for p in dict.fromkeys(parameters) if p.requires_grad]
        self.lr = lr
        self.clip = clip
        self.share = 1.0

    def step(self) -> None:
        """Take one step and clear the gradients."""
        moving = [(p, p.grad) for p in self.parameters if p.grad is not None]
        with torch.no_grad():
            if self.clip < math.inf and moving:
                self._clipped_step(moving)
            else:
                for p, gradient in moving:
                    p.add_(gradient, alpha=-self.lr * self.share)
        for p, _ in moving:
            p.grad = None

    def _clipped_step(self, moving: list[tuple[nn.Parameter, Tensor]]) -> None:
        norm = gradient_norm([gradient for _, gradient in moving])
        if norm.is_cpu:
            shrunk = min(self.clip / (norm.item() + _TINY), 1.0)  # this argument order propagates NaN
            rate = self.lr * self.share * shrunk
            for p, gradient in moving:
                p.add_(gradient, alpha=-rate)
        else:  # the norm stays on the device: reading it would sync on every step
            share = (self.clip / (norm + _TINY)).clamp(max=1.0)
            for p, gradient in moving:
                p.addcmul_(gradient, share, value=-self.lr * self.share)


class ClippedTorch:
    """An optimizer of torch with the norm of all its gradients clipped before each step.

    With momentum or AdamW the fused kernels of torch are faster than its loops (figures in docs/performance.md).
    """

    def __init__(self, optimizer: torch.optim.Optimizer, lr: float, clip: float = math.inf) -> None:
        self.optimizer = optimizer
        self.lr = lr
        self.clip = clip
        self.share = 1.0
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def step(self) -> None:
        """Take one step and clear the gradients."""
        if self.clip < math.inf:
            nn.utils.clip_grad_norm_(self.parameters, self.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * self.share
        self.optimizer.step()
        self.optimizer.zero_grad()


def make_optimizer(
    settings: Optimizer, parameters: Iterable[nn.Parameter], lr: float, clip: float, moments: Moments | None
) -> Stepper:
    """The optimizer of these settings; parameters in `moments` continue from their running averages."""
    if settings.plain:
        return ClippedSGD(parameters, lr, clip)
    moving = [p for p in dict.fromkeys(parameters) if p.requires_grad]
    fused = all(_dense(p) for p in moving)
    optimizer: torch.optim.Optimizer
    if settings.name == "adamw":
        betas = (settings.beta1, settings.beta2)
        optimizer = torch.optim.AdamW(moving, lr, betas, weight_decay=settings.weight_decay, fused=fused)
    else:
        optimizer = torch.optim.SGD(moving, lr, settings.momentum, weight_decay=settings.weight_decay, fused=fused)
    if moments is not None:
        moments.attach(optimizer)
    return ClippedTorch(optimizer, lr, clip)


def _dense(p: nn.Parameter) -> bool:
    """Whether a parameter has no gaps in memory, which torch's fused kernels expect but do not check."""
    return p.is_contiguous() or (p.ndim == 4 and p.is_contiguous(memory_format=torch.channels_last))


def slots_of(settings: Optimizer) -> tuple[str, ...]:
    """The running averages that the optimizer keeps of each parameter."""
    if settings.name == "adamw":
        return ADAM_SLOTS
    return SGD_SLOTS if settings.momentum else ()


def gradient_norm(gradients: Sequence[Tensor]) -> Tensor:
    """The norm of all these gradients together, on their device."""
    if sum(gradient.numel() for gradient in gradients) <= _LARGE:  # a copy of all costs less than a norm of each
        norm: Tensor = vector_norm(torch.cat([gradient.flatten() for gradient in gradients]))
    else:
        norm = vector_norm(torch.stack([_norm(gradient) for gradient in gradients]))
    return norm


def _norm(gradient: Tensor) -> Tensor:
    """The norm of one gradient; large ones row by row, which is more precise and as fast."""
    rows = gradient
    if gradient.ndim > 1 and gradient.numel() >= _LARGE:
        rows = vector_norm(gradient, dim=tuple(range(1, gradient.ndim)))
    norm: Tensor = vector_norm(rows)
    return norm
