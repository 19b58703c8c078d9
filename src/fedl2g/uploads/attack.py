"""Simulated attacks: hostile clients that corrupt what they upload, or the labels they train on.

A hostile client attacks last: after the paper's noise and after the clipping and noise of differential privacy, which
it has no reason to obey.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedl2g import rng
from fedl2g.experiment.policies import Attack
from fedl2g.payload import Payload
from fedl2g.uploads.noise import root_mean_square


def hostile_clients(attack: Attack, clients: int, seed: int) -> frozenset[int]:
    """Who attacks in every round it takes part in."""
    if not attack.share:
        return frozenset()
    count = int(attack.share * clients + 0.5)
    return frozenset(rng.numpy_stream(seed, "hostile").permutation(clients)[:count].tolist())


def corrupt(upload: Payload, received: Payload, attack: Attack, seed: int, client: int, round: int) -> Payload:
    """What a hostile client sends in place of its upload; class ids stay valid, so that it gets past the checks.

    Both payloads hold whole tensors: flipping two factors would change nothing.
    """
    if attack.kind == "random_labels":
        return upload  # its training was the attack
    generator = rng.torch_stream(seed, "attack", client, round)
    scale = attack.strength * root_mean_square(upload)
    # Networks are flipped about the one the server sent: the attacker walks backwards.
    centred = "ids" not in upload and {n: t.shape for n, t in upload.items()} == {
        n: t.shape for n, t in received.items()
    }
    corrupted = dict(upload)
    for name, values in upload.items():
        if not values.is_floating_point() or name == "present":
            continue  # of the classes it says it has, an attacker sends vectors
        if attack.kind == "constant":
            corrupted[name] = torch.full_like(values, attack.strength)
        elif attack.kind == "noise":
            draw = torch.randn(values.shape, generator=generator, dtype=torch.float64)
            corrupted[name] = (values.double() + scale * draw).to(values.dtype)
        else:
            centre = received[name].double() if centred else torch.zeros((), dtype=torch.float64)
            corrupted[name] = (centre - attack.strength * (values.double() - centre)).to(values.dtype)
    return corrupted


def random_labels(labels: Tensor, positions: Tensor, classes: int, attack: Attack, seed: int, client: int) -> Tensor:
    """A copy of the labels in which the share `strength` of those at the positions is drawn at random."""
    stream = rng.numpy_stream(seed, "random_labels", client)
    chosen = positions[torch.from_numpy(stream.random(len(positions)) < attack.strength)]
    changed = labels.clone()
    changed[chosen] = torch.from_numpy(stream.integers(classes, size=len(chosen))).to(labels.dtype)
    return changed
