"""Simulated attacks: hostile clients that corrupt what they upload, or the labels they train on.

A hostile client attacks last: after the paper's noise and after the clipping and noise of differential privacy, which
it has no reason to obey.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedl2g import rng
from fedl2g.experiment.policies import Attack
from fedl2g.learning.client import Client
from fedl2g.payload import PRESENT, Payload, root_mean_square
from fedl2g.uploads.stage import Stage, Upload


def hostile_clients(attack: Attack, clients: int, seed: int) -> frozenset[int]:
    """Who attacks in every round it takes part in."""
    if not attack.share:
        return frozenset()
    count = int(attack.share * clients + 0.5)
    return frozenset(rng.numpy_stream(seed, "hostile").permutation(clients)[:count].tolist())


class Corrupt(Stage):
    """Makes hostile clients attack."""

    def __init__(self, attack: Attack, hostile: frozenset[int], seed: int) -> None:
        self.attack = attack
        self.hostile = hostile
        self.seed = seed

    def prepare(self, client: Client) -> None:
        if client.id in self.hostile and self.attack.kind == "random_labels":
            view = client.train_set
            view.labels = random_labels(
                view.labels, view.indices, client.task.classes, self.attack, self.seed, client.id
            )

    def apply(self, upload: Upload) -> Upload:
        if upload.client not in self.hostile:
            return upload
        # Whole tensors: flipping two factors would change nothing.
        sent, received = upload.decode(upload.payload), upload.decode(upload.received)
        if self.attack.kind != "random_labels":  # there, its training was the attack
            generator = rng.torch_stream(self.seed, "attack", upload.client, upload.round)
            sent = corrupt(sent, received, self.attack, generator)
        return replace(upload, payload=sent)


def corrupt(upload: Payload, received: Payload, attack: Attack, generator: torch.Generator) -> Payload:
    """What a hostile client sends in place of its upload; class ids stay valid, so that it gets past the checks."""
    scale = attack.strength * root_mean_square(upload)
    # Networks are flipped about the one the server sent: the attacker walks backwards.
    centred = "ids" not in upload and {n: t.shape for n, t in upload.items()} == {
        n: t.shape for n, t in received.items()
    }
    corrupted = dict(upload)
    for name, values in upload.items():
        if not values.is_floating_point() or name == PRESENT:
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
