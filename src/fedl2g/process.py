"""How a process computes: on which CPU, with one thread, with rare searches for garbage, with memory that it keeps."""

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
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # names of mallopt(3)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread inside the block: numbers must not depend on how many cores a machine has."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def rare_garbage_collection() -> Iterator[None]:
    """Search for garbage seldom inside the block, and not among what is there already.

    The objects of thousands of networks live as long as the run: walking through them after every few hundred new ones
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
    """Let this process keep up to 1 GB that it has freed, for the next step. True if that was done.

    A training step frees its activations and gradients. By default glibc gives such blocks back to the system, which
    hands them out again, page by page and cleared, in the next step. Measured on an Intel Xeon with batches of ten 32 x
    32 images, a step without this takes 1.2 times as long for cnn4 and resnet18, and as long for the small networks. An
    allocator that the user has set up by environment variables is left as it is.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in _ALLOCATOR_SETTINGS):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # a C library without it
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, 2**30) and mallopt(_M_MMAP_THRESHOLD, 2**25))


def cpu_model() -> str:
    """The name of this machine's CPU, as exactly as the system tells it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "unknown"
