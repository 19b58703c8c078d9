"""A clipped SGD step in one pass over the memory, for 32-bit networks on the CPU.

Clipping needs the norm of all gradients before the first parameter may move. That is a pass of its own over tensors
larger than the caches, and costs a few percent of a training step. Here a block of parameters moves at once, as if
nothing were to be clipped, while the squares of its gradients are added up. The block that breaks the limit is put
back, the rest only measured, and then all are brought to the rate of the clipped step. Until the limit broke the norm
was within it, so what is taken back then is small and costs no precision.
"""

from __future__ import annotations

import ctypes
import math
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numba import cfunc, njit
from torch import Tensor
from torch.autograd.graph import increment_version

BLOCK = 1024  # floats, so that a block stays in the first-level cache
TINY = 1e-6  # added to the norm, as `torch.nn.utils.clip_grad_norm_` does

_compiled = njit(fastmath={"contract", "reassoc"}, error_model="numpy")  # sums in any order, as vectors of floats


@_compiled
def _move(p: Any, g: Any, start: int, stop: int, rate: Any) -> None:
    for i in range(start, stop):
        p[i] -= rate * g[i]


@_compiled
def _squares(g: Any, start: int, stop: int) -> Any:
    total = np.float32(0)
    for i in range(start, stop):
        total += g[i] * g[i]
    return total


@_compiled
def _move_and_squares(p: Any, g: Any, start: int, stop: int, rate: Any, before: Any) -> Any:
    total = np.float32(0)
    for i in range(start, stop):
        total += g[i] * g[i]
        before[i - start] = p[i]
        p[i] -= rate * g[i]
    return total


@_compiled
def _put_back(p: Any, start: int, stop: int, before: Any) -> None:
    for i in range(start, stop):
        p[i] = before[i - start]


def _step(parameters: Any, gradients: Any, sizes: Any, count: int, before: Any, lr: float, clip: float) -> float:
    limit = max(clip - TINY, 0.0) ** 2
    total = 0.0
    last, items = count, 0  # where moving ended: after this many whole tensors and this many items of the next
    for t in range(count):
        p, g = parameters[t], gradients[t]
        for start in range(0, sizes[t], BLOCK):
            stop = min(start + BLOCK, sizes[t])
            if last < count:
                total += _squares(g, start, stop)
                continue
            total += _move_and_squares(p, g, start, stop, np.float32(lr), before)
            if not total <= limit:  # or it is not a number
                _put_back(p, start, stop, before)
                last, items = t, start
    norm = math.sqrt(total)
    if last < count:
        rate = lr * clip / (norm + TINY)
        for t in range(count):
            p, g = parameters[t], gradients[t]
            moved = sizes[t] if t < last else items if t == last else 0
            _move(p, g, 0, moved, np.float32(rate - lr))
            _move(p, g, moved, sizes[t], np.float32(rate))
    return norm


# numba compiles for the processor it runs on; what it made is kept for the next process if a folder can be written
_SIGNATURE = """float64(
    CPointer(CPointer(float32)), CPointer(CPointer(float32)), CPointer(int64), int64,
    CPointer(float32), float64, float64
)"""
try:
    _compiled_step = cfunc(_SIGNATURE, cache=True, error_model="numpy")(_step)
except (RuntimeError, OSError):
    _compiled_step = cfunc(_SIGNATURE, error_model="numpy")(_step)
_ADDRESS, _COUNT, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
_RUN = ctypes.CFUNCTYPE(_REAL, _ADDRESS, _ADDRESS, _ADDRESS, _COUNT, _ADDRESS, _REAL, _REAL)
_run = _RUN(_compiled_step.address or 0)


def clipped_step(parameters: Sequence[Tensor], gradients: Sequence[Tensor], lr: float, clip: float) -> float:
    """Move the parameters against their gradients, the norm of these clipped. Returns the norm before clipping.

    Parameters and gradients must be 32-bit numbers on the CPU, each pair in the same order and without gaps.
    """
    places = array("Q", [p.data_ptr() for p in parameters])
    slopes = array("Q", [g.data_ptr() for g in gradients])
    sizes = array("q", [p.numel() for p in parameters])
    before = torch.empty(BLOCK)
    norm: float = _run(_at(places), _at(slopes), _at(sizes), len(sizes), before.data_ptr(), lr, clip)
    increment_version(parameters)
    return norm


def _at(numbers: array[int]) -> int:
    address, _ = numbers.buffer_info()
    return address
