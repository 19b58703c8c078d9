"""The gradients of FedL2G's loss at a network's outputs in one pass, for 32-bit networks on the CPU.

    CE(logits, y) + MSE(z, G[y])

is some ten small operations of torch, forwards and backwards, which take some percent of a small network's training
step. Their gradients are known, so the backward pass starts behind them, at the outputs.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import torch
from numba import cfunc
from torch import Tensor
from torch.autograd import Variable


def _differentiate(
    logits: Any, z: Any, y: Any, guide: Any, n: int, classes: int, width: int, at_logits: Any, at_z: Any, one: bool
) -> float:
    """Fill the gradients at the logits and at z, which are one when z is the logits.

    Returns the cross entropy, or minus infinity when a label is no class.
    """
    total = 0.0
    for i in range(n):
        row = i * classes
        if not 0 <= y[i] < classes:
            return -math.inf
        top = logits[row]
        for j in range(row, row + classes):
            top = max(top, logits[j])
        mass = np.float32(0)
        for j in range(row, row + classes):
            share = math.exp(logits[j] - top)
            at_logits[j] = share
            mass += share
        total += math.log(np.float64(mass)) + (np.float64(top) - np.float64(logits[row + y[i]]))
        for j in range(row, row + classes):
            at_logits[j] /= mass * np.float32(n)
        at_logits[row + y[i]] -= np.float32(1 / n)
    for i in range(n):
        shift = (y[i] - i) * width  # from sample i of z to its class's guiding vector
        for j in range(i * width, (i + 1) * width):
            pull = np.float32(2 / (n * width)) * (z[j] - guide[j + shift])
            at_z[j] = at_logits[j] + pull if one else pull
    return total / n


_SIGNATURE = """float64(
    CPointer(float32), CPointer(float32), CPointer(int64), CPointer(float32), int64, int64, int64,
    CPointer(float32), CPointer(float32), boolean
)"""
# "reassoc" and "contract", as in `fedl2g.learning.descent`; nothing that would forget what is no number.
_compiled = cfunc(_SIGNATURE, fastmath={"contract", "reassoc"}, error_model="numpy")(_differentiate)
_ADDRESSES, _COUNTS = (ctypes.c_void_p,) * 4, (ctypes.c_int64,) * 3
_PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_double, *_ADDRESSES, *_COUNTS, *_ADDRESSES[:2], ctypes.c_bool)
_call = _PROTOTYPE(_compiled.address or 0)


class KnownGradients:
    """FedL2G's loss as far as training needs it: where its backward pass starts, and the cross entropy.

    Logits (n x C), z (n x M: the logits themselves or the features), labels (n) and guide (C x M) must be on the CPU
    and without gaps, of 32-bit numbers and 64-bit labels; logits and z must come from parameters that learn.
    """

    def __init__(self, logits: Tensor, z: Tensor, y: Tensor, guide: Tensor) -> None:
        self._outputs = (logits,) if z is logits else (logits, z)
        self._gradients = tuple([torch.empty_like(output) for output in self._outputs])
        value: float = _call(
            logits.data_ptr(), z.data_ptr(), y.data_ptr(), guide.data_ptr(), len(y), *guide.shape,
            self._gradients[0].data_ptr(), self._gradients[-1].data_ptr(), z is logits,
        )  # fmt: skip
        if value == -math.inf:
            raise IndexError(f"a label is not in 0..{len(guide) - 1}")
        self.cross_entropy = torch.tensor(value, dtype=torch.float64, device="cpu")

    def backward(self) -> None:
        """Add the gradients of the parameters that lead to the outputs.

        As `torch.autograd.backward(outputs, gradients)` does, without its comparison of their symbolic shapes, which
        are equal here: it takes some percent of a small network's training step.
        """
        Variable._execution_engine.run_backward(
            self._outputs, self._gradients, False, False, (), allow_unreachable=True, accumulate_grad=True
        )
