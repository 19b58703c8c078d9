"""What an optimizer of torch remembers between steps, as a module: saved and restored like a network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

STEP = "step"  # the slot that counts steps; all other slots have the form of the parameter

SGD_SLOTS = ("momentum_buffer",)
ADAM_SLOTS = (STEP, "exp_avg", "exp_avg_sq")


class Moments(nn.Module):
    """The running averages of some parameters, named as torch's optimizers name them, from zero.

    A buffer is called SLOT/PARAMETER with slashes for the parameter's dots. torch's optimizers change them in place, so
    that the buffers hold what the optimizer remembers, without copies.
    """

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]], slots: Sequence[str]) -> None:
        super().__init__()
        self._of: dict[nn.Parameter, dict[str, str]] = {}
        for name, parameter in parameters:
            if parameter.requires_grad and parameter not in self._of:
                self._of[parameter] = {slot: f"{slot}/{name.replace('.', '/')}" for slot in slots}
                for slot, buffer in self._of[parameter].items():
                    self.register_buffer(buffer, _zero(slot, parameter))

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the optimizer go on from here, and write here; parameters without moments start anew."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter in self._of:
                    kept = self._of[parameter]
                    optimizer.state[parameter] = {slot: self.get_buffer(buffer) for slot, buffer in kept.items()}


def _zero(slot: str, parameter: nn.Parameter) -> Tensor:
    """As torch's fused optimizers start: the number of steps is a float32 beside the parameter."""
    if slot == STEP:
        return torch.zeros((), dtype=torch.float32, device=parameter.device)
    return torch.zeros_like(parameter, requires_grad=False)
