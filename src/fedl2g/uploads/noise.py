"""The paper's noise on uploads (its table "noise", after FedPCL). It carries no differential-privacy guarantee.

On the client, before the upload leaves:  v <- (1 - p) * v + e,  e ~ N(0, s^2).

Nothing bounds v, so no amount of this noise bounds what v says about a client's data.
"""

from __future__ import annotations

import torch

from fedl2g import rng
from fedl2g.experiment.policies import Noise
from fedl2g.payload import Payload


def add_noise(payload: Payload, noise: Noise, seed: int, client: int, round: int) -> Payload:
    """The upload with noise on its floating-point entries, from a stream of its own; class ids stay as they are."""
    if not noise.on:
        return payload
    generator = rng.torch_stream(seed, "noise", client, round)
    std = noise.std * (root_mean_square(payload) if noise.scale == "relative" else 1.0)
    noisy = dict(payload)
    for name, values in payload.items():
        if values.is_floating_point():
            draw = torch.randn(values.shape, generator=generator, dtype=torch.float64)
            kept = 1.0 if name == "present" else 1 - noise.coefficient  # whether a class is there is no quantity
            noisy[name] = (kept * values.double() + std * draw).to(values.dtype)
    return noisy


def root_mean_square(payload: Payload) -> float:
    """The RMS over all floating-point values of a payload; 0 when it has none."""
    values = [t for t in payload.values() if t.is_floating_point()]
    count = sum(t.numel() for t in values)
    return (sum(float(t.double().square().sum()) for t in values) / count) ** 0.5 if count else 0.0
