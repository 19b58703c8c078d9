"""Random streams derived from (seed, purpose, client, round), never from a global generator.

A result therefore depends neither on the engine, nor on the number of workers, nor on the order in which clients run,
and a checkpoint needs no generator state: every stream can be recreated from its name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive(seed: int, purpose: str, *ids: int) -> int:
    """A 63-bit seed that is a function of its arguments alone (the same on every machine and Python)."""
    text = "/".join([str(seed), purpose, *map(str, ids)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def torch_stream(seed: int, purpose: str, *ids: int) -> torch.Generator:
    """A separate torch generator (on the CPU) for one purpose."""
    return torch.Generator().manual_seed(derive(seed, purpose, *ids))


def numpy_stream(seed: int, purpose: str, *ids: int) -> np.random.Generator:
    """A separate numpy generator for one purpose."""
    return np.random.default_rng(derive(seed, purpose, *ids))


@contextmanager
def seeded(seed: int, purpose: str, *ids: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's global generator inside the block and restore it afterwards.

    For dropout and weight initialisation, which can only draw from the global generator.
    """
    accelerators = [device] if device is not None and device.type not in ("cpu", "meta") else []
    kind = accelerators[0].type if accelerators else "cuda"
    with torch.random.fork_rng(devices=accelerators, device_type=kind):
        # Not torch.manual_seed: it records the call stack on every call for accelerators not yet initialised.
        torch.default_generator.manual_seed(derive(seed, purpose, *ids))
        for accelerator in accelerators:
            module = torch.get_device_module(accelerator)
            getattr(module, "manual_seed_all", module.manual_seed)(derive(seed, purpose, *ids))
        yield
