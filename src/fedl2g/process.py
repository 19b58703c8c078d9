"""Process-wide settings for speed and reproducibility: threads, garbage collection, the allocator."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

_ALLOCATOR_SETTINGS = ("GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # constants of mallopt(3)


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one torch thread inside the block: numbers must not depend on the number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def rare_garbage_collection() -> Iterator[None]:
    """Collect garbage rarely inside the block, and exclude the objects that exist already.

    The objects of thousands of networks live as long as the run: scanning them after every few hundred allocations
    takes a tenth of a round.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@functools.cache
def keep_freed_memory() -> bool:
    """Let the allocator keep up to 1 GB of freed memory for the next step; returns whether that succeeded.

    A training step frees its activations and gradients. By default glibc returns such blocks to the system, which must
    map and clear them again in the next step. Measured on an Intel Xeon with batches of ten 32 x 32 images, a step
    without this takes 1.2 times as long for cnn4 and resnet18, and as long for the small networks. An allocator
    configured by environment variables is left unchanged.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in _ALLOCATOR_SETTINGS):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # not glibc
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, 2**30) and mallopt(_M_MMAP_THRESHOLD, 2**25))


def cpu_model() -> str:
    """The name of this machine's CPU, as reported by the system."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "unknown"
