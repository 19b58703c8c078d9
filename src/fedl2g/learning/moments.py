"""The running averages of torch's optimizers as a module: saved and restored like a network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

STEP = "step"  # the slot that counts steps; all other slots have the form of the parameter

SGD_SLOTS = ("momentum_buffer",)
ADAM_SLOTS = (STEP, "exp_avg", "exp_avg_sq")


class Moments(nn.Module):
    """The running averages of some parameters, initially zero, named as in torch's optimizers.

    A buffer is called SLOT/PARAMETER, with slashes for the parameter's dots. torch's optimizers update the buffers in
    place, so that no copies are needed.
    """

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]], slots: Sequence[str]) -> None:
        super().__init__()
        self._slots = tuple(slots)
        self._of: dict[nn.Parameter, dict[str, str]] = {}
        for name, parameter in parameters:
            if parameter.requires_grad and parameter not in self._of:
                self._of[parameter] = {slot: f"{slot}/{name.replace('.', '/')}" for slot in slots}
                for slot, buffer in self._of[parameter].items():
                    self.register_buffer(buffer, _zero(slot, parameter))

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the optimizer continue from these moments and update them; parameters without moments start from zero.

        torch's fused kernels expect the moments of all parameters, or of none.
        """
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if not any(parameter in self._of for parameter in parameters):
            return
        for parameter in parameters:
            kept = self._of.get(parameter, {})
            optimizer.state[parameter] = {
                slot: self.get_buffer(kept[slot]) if kept else _zero(slot, parameter) for slot in self._slots
            }


def _zero(slot: str, parameter: nn.Parameter) -> Tensor:
    """The initial value in torch's fused optimizers: the number of steps is a float32 on the parameter's device."""
    if slot == STEP:
        return torch.zeros((), dtype=torch.float32, device=parameter.device)
    return torch.zeros_like(parameter, requires_grad=False)
