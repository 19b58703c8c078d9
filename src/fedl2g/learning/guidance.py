"""The guiding gradient of FedL2G: how the quiz loss after one pseudo-step changes with the guiding vectors.

With theta' = theta - lr * grad[CE + w * MSE(z, G[y])](S) for a study batch S (the paper: w = 1) and q = CE on the quiz
set at theta', the paper needs pi = dq/dG. Written out, no second-order graph is needed: with g = grad q at theta',

    pi[y] = 2 * w * lr / (|S| * M) * sum over j in S with y_j = y of  J_theta z(x_j; theta) . g

so one forward+backward on S, one forward+backward on the quiz set and one forward-mode Jacobian-vector product suffice.

The alignment is the cosine between g and grad MSE(z, G[y])(S): negative if a step along the pull raises the quiz loss.
The same Jacobian-vector product gives the inner product,

    <g, grad MSE> = 2 / (|S| * M) * sum over j in S of  <z_j - G[y_j], J_theta z(x_j; theta) . g>

and one more backward pass through the graph of S gives the norm of grad MSE.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, mse_loss

from fedl2g.learning.optimizer import gradient_norm

_log = logging.getLogger(__name__)
_without_forward_mode: set[frozenset[type[nn.Module]]] = set()  # the layers of networks that have no forward mode
Space = Literal["logits", "features"]
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Guidance:
    """A guiding gradient (the rows of the classes in the study batch, ascending) and the alignment of the pull."""

    ids: Tensor
    rows: Tensor
    alignment: float


def guiding_gradient(
    model: nn.Module, study: Batch, quiz: Batch, guide: Tensor, *, lr: float, space: Space, weight: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The gradient of the quiz loss after one pseudo-step with respect to the guiding vectors.

    Returns the ids of the classes in the study batch (ascending) and their rows; every other row is zero. See
    `guidance`.
    """
    found = guidance(model, study, quiz, guide, lr=lr, space=space, weight=weight)
    return found.ids, found.rows


def guidance(
    model: nn.Module, study: Batch, quiz: Batch, guide: Tensor, *, lr: float, space: Space, weight: float = 1.0
) -> Guidance:
    """The guiding gradient and the alignment of one pseudo-step, in which the pull has this weight.

    `model(x)` gives (features, logits); `guide` is C x M with M the width of `space`. The model (parameters, buffers,
    mode) and the random generators are left exactly as they were; no second-order graph is built.
    """
    learning = {name: p for name, p in model.named_parameters() if p.requires_grad}
    parameters: list[Tensor] = list(learning.values())
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    x, y = study
    device = x.device
    column = 0 if space == "features" else 1

    def outputs_at(values: Sequence[Tensor], inputs: Tensor) -> tuple[Tensor, Tensor]:
        at = {**dict(zip(learning, values, strict=True)), **buffers}
        result: tuple[Tensor, Tensor] = functional_call(model, at, (inputs,))
        return result

    def gradient_at(objective: Tensor, values: Sequence[Tensor], keep: bool = False) -> tuple[Tensor, ...]:
        return torch.autograd.grad(objective, values, retain_graph=keep, allow_unused=True, materialize_grads=True)

    with (
        _private_generators(device),
        warnings.catch_warnings(),
        _batch_statistics_only(model),
        _differentiable_attention(),
        torch.enable_grad(),
    ):
        warnings.simplefilter("ignore", FutureWarning)  # torch's own use of torch.jit in the JVP
        mask = _generator_state(device)
        out = outputs_at(parameters, x)
        offset = out[column].detach() - guide[y]
        pull = mse_loss(out[column], guide[y])
        objective = torch.add(cross_entropy(out[1], y), pull, alpha=weight)
        gradients = gradient_at(objective, parameters, keep=pull.requires_grad)
        with torch.no_grad():
            moved = [torch.add(p, g, alpha=-lr).requires_grad_() for p, g in zip(parameters, gradients, strict=True)]
        del gradients
        pull_norm = gradient_norm(gradient_at(pull, parameters)) if pull.requires_grad else pull.new_zeros(())
        del out, pull, objective

        quiz_x, quiz_y = quiz
        quiz_loss = cross_entropy(outputs_at(moved, quiz_x)[1], quiz_y)
        direction = gradient_at(quiz_loss, moved)
        del moved, quiz_loss

        # The Jacobian is taken at the study pass: the same dropout mask must be drawn again.
        def at(values: Sequence[Tensor]) -> Tensor:
            _set_generator_state(device, mask)
            return outputs_at(values, x)[column]

        tangent = _product(model, at, parameters, direction)
        with torch.no_grad():
            if tangent is None:  # z does not depend on any parameter
                tangent = torch.zeros(len(y), guide.shape[1], dtype=guide.dtype, device=device)
            ids, positions = torch.unique(y, return_inverse=True)
            rows = tangent.new_zeros(len(ids), guide.shape[1]).index_add_(0, positions, tangent)
            product = 2 / offset.numel() * (offset.double() * tangent.double()).sum()
            alignment = _cosine(float(product), float(gradient_norm(direction)), float(pull_norm))
            return Guidance(ids, rows * (2 * lr * weight / offset.numel()), alignment)


def _product(
    model: nn.Module,
    outputs: Callable[[Sequence[Tensor]], Tensor],
    parameters: Sequence[Tensor],
    direction: Sequence[Tensor],
) -> Tensor | None:
    """The Jacobian of the outputs times a direction, None if they depend on no parameter.

    In forward mode, one pass. A network with an operation that has no forward derivative falls back to two backward
    passes, and so do all networks of the same layers from then on: the product is linear in the vector of a backward
    pass, so its derivative is what is wanted.
    """
    layers = frozenset(type(module) for module in model.modules())
    if layers not in _without_forward_mode:
        try:
            with torch.no_grad(), forward_ad.dual_level():
                dual = [
                    forward_ad.make_dual(p.detach(), g)  # type: ignore[no-untyped-call]
                    for p, g in zip(parameters, direction, strict=True)
                ]
                tangent: Tensor | None = forward_ad.unpack_dual(outputs(dual)).tangent  # type: ignore[no-untyped-call]
                return tangent
        except (NotImplementedError, RuntimeError) as error:
            if "forward" not in str(error).lower():  # torch has no class of its own for a missing derivative
                raise
            _without_forward_mode.add(layers)
            _log.warning(
                "the guiding gradient is computed by double backward, which takes more memory: the network has an "
                "operation without a forward derivative (%s)",
                " ".join(str(error).split())[:200],
            )
    at = [p.detach().requires_grad_() for p in parameters]
    out = outputs(at)
    if not out.requires_grad:
        return None
    vector = torch.zeros_like(out, requires_grad=True)
    pulled = torch.autograd.grad(out, at, vector, create_graph=True, allow_unused=True, materialize_grads=True)
    (found,) = torch.autograd.grad(pulled, vector, direction, materialize_grads=True)
    return found.detach()


def _cosine(product: float, *norms: float) -> float:
    """The cosine of two vectors from their inner product and norms; 0 if one of them is zero, NaN stays NaN."""
    if 0.0 in norms:
        return 0.0
    return min(max(product / norms[0] / norms[1], -1.0), 1.0)  # this argument order keeps NaN


@contextmanager
def _private_generators(device: torch.device) -> Iterator[None]:
    """Restore the global generators afterwards, so that dropout in here does not advance them."""
    accelerators = [] if device.type == "cpu" else [device]
    kind = "cuda" if device.type == "cpu" else device.type
    with torch.random.fork_rng(devices=accelerators, device_type=kind):
        yield


def _generator_state(device: torch.device) -> Tensor:
    return torch.get_rng_state() if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)


def _set_generator_state(device: torch.device, state: Tensor) -> None:
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)


@contextmanager
def _differentiable_attention() -> Iterator[None]:
    """Disable fused attention kernels, in train and in eval mode: they have no forward-mode derivative."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@contextmanager
def _batch_statistics_only(model: nn.Module) -> Iterator[None]:
    """Stop BatchNorm from tracking statistics: forward mode would write dual tensors into them."""
    tracking = [m for m in model.modules() if m.training and getattr(m, "track_running_stats", False)]
    for module in tracking:
        module.track_running_stats = False  # type: ignore[assignment]
    try:
        yield
    finally:
        for module in tracking:
            module.track_running_stats = True  # type: ignore[assignment]
