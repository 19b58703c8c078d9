"""A clipped SGD step in one pass over the memory, for 32-bit networks on the CPU.

Clipping needs the norm of all gradients before the first parameter may move. That is a pass of its own over tensors
larger than the caches, and costs a few percent of a training step. Here a block of parameters moves at once, as if
nothing were to be clipped, while the squares of its gradients are added up. When the limit breaks, the last block is
put back, the rest is only measured, and then all are brought to where the clipped step ends. Up to the last block the
norm was within the limit, so no parameter has gone further than lr * clip, and coming back costs it half a unit in the
last place of that at most.
"""

from __future__ import annotations

import ctypes
import math
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numba import cfunc
from torch import Tensor
from torch.autograd.graph import increment_version

BLOCK = 1024  # floats, so that a block stays in the first-level cache
TINY = 1e-6  # added to the norm, as `torch.nn.utils.clip_grad_norm_` does


def _step(parameters: Any, gradients: Any, sizes: Any, count: int, before: Any, lr: float, clip: float) -> float:
    limit = max(clip - TINY, 0.0) ** 2
    rate = np.float32(lr)
    total: Any = 0.0
    last, items = count, 0  # where moving ended: after this many whole tensors and this many items of the next
    for t in range(count):
        p, g = parameters[t], gradients[t]
        for start in range(0, sizes[t], BLOCK):
            stop = min(start + BLOCK, sizes[t])
            squares = np.float32(0)
            if last < count:
                for i in range(start, stop):
                    squares += g[i] * g[i]
                total += squares
                continue
            for i in range(start, stop):
                squares += g[i] * g[i]
                before[i - start] = p[i]
                p[i] -= rate * g[i]
            total += squares
            if not total <= limit:  # or it is not a number
                for i in range(start, stop):
                    p[i] = before[i - start]
                last, items = t, start
    norm = math.sqrt(total)
    if last < count:
        clipped = lr * clip / (norm + TINY)
        rest, back = np.float32(clipped), np.float32(clipped - lr)
        for t in range(count):
            p, g = parameters[t], gradients[t]
            moved = sizes[t] if t < last else items if t == last else 0
            for i in range(moved):
                p[i] -= back * g[i]
            for i in range(moved, sizes[t]):
                p[i] -= rest * g[i]
    return norm


_SIGNATURE = """float64(
    CPointer(CPointer(float32)), CPointer(CPointer(float32)), CPointer(int64), int64,
    CPointer(float32), float64, float64
)"""
# Compiled for this processor; "reassoc" and "contract": a sum in vectors, `p - rate * g` rounded once, as torch does.
_compiled = cfunc(_SIGNATURE, fastmath={"contract", "reassoc"}, error_model="numpy")(_step)
_ADDRESS, _COUNT, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
_call = ctypes.CFUNCTYPE(_REAL, _ADDRESS, _ADDRESS, _ADDRESS, _COUNT, _ADDRESS, _REAL, _REAL)(_compiled.address or 0)


class ClippedStep:
    """The step of these parameters: 32-bit numbers on the CPU without gaps, with gradients of the same type."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        # As long as their memory is held, nothing else can come to lie there.
        self._memory = [p.detach() for p in parameters]
        self._places = array("Q", [p.data_ptr() for p in parameters])
        self._sizes = array("q", [p.numel() for p in parameters])
        self._strides = [p.stride() for p in parameters]
        self._before = torch.empty(BLOCK, dtype=torch.float32, device="cpu")
        self.norm = math.nan  # of the last step's gradients, before clipping

    def __call__(self, lr: float, clip: float) -> bool:
        """Move the parameters against their gradients, the norm of these clipped.

        False, with nothing moved, if a parameter has moved elsewhere, has no gradient, or one in another order.
        """
        slopes = array("Q")
        # Every look at a tensor counts: in a small network's training step they are cold, and take a percent of it.
        for p, place, strides in zip(self._parameters, self._places, self._strides, strict=True):
            g = p.grad  # of the type, shape and device of its parameter, which torch sees to
            if g is None or g.stride() != strides or p.data_ptr() != place:
                return False
            slopes.append(g.data_ptr())
        self.norm = _call(
            _at(self._places), _at(slopes), _at(self._sizes), len(slopes), self._before.data_ptr(), lr, clip
        )
        increment_version(self._parameters)
        return True


def _at(numbers: array[int]) -> int:
    address, _ = numbers.buffer_info()
    return address
