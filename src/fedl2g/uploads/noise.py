"""The paper's noise on uploads (its noise table, after FedPCL). It gives no differential-privacy guarantee.

On the client, before the upload leaves:  v <- (1 - p) * v + e,  e ~ N(0, s^2).

FedPCL's public code adds e to v as it is: s is absolute there. Guiding gradients are orders of magnitude smaller than
FedPCL's features, so s can also be relative to the upload.

v is unbounded, so no amount of this noise bounds what v reveals about a client's data.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from fedl2g import rng
from fedl2g.experiment.policies import Noise
from fedl2g.payload import PRESENT, Payload, root_mean_square
from fedl2g.uploads.stage import Stage, Upload


class AddNoise(Stage):
    """Adds the paper's noise to every upload, from a separate random stream."""

    def __init__(self, noise: Noise, seed: int) -> None:
        self.noise = noise
        self.seed = seed

    def apply(self, upload: Upload) -> Upload:
        generator = rng.torch_stream(self.seed, "noise", upload.client, upload.round)
        # On decoded tensors: on two low-rank factors, (1 - p) would count twice. They are sent whole, since a tensor
        # with noise has no low rank.
        return replace(upload, payload=add_noise(upload.decode(upload.payload), self.noise, generator))


def add_noise(payload: Payload, noise: Noise, generator: torch.Generator) -> Payload:
    """A copy of the payload with noise on its floating-point entries; class ids are unchanged."""
    size = root_mean_square(payload) if noise.scale == "relative" else 1.0
    noisy = dict(payload)
    for name, values in payload.items():
        if values.is_floating_point():
            draw = torch.randn(values.shape, generator=generator, dtype=torch.float64)
            # An indicator must not be scaled, and its own size is 1.
            kept, unit = (1.0, 1.0) if name == PRESENT else (1 - noise.coefficient, size)
            noisy[name] = (kept * values.double() + noise.std * unit * draw).to(values.dtype)
    return noisy
