"""Simulated attacks: hostile clients that corrupt what they upload, or the labels they train on.

The attack is the last stage: it overrides the paper's noise and the clipping and noise of differential privacy, which a
hostile client need not apply.
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
    """The clients that attack in every round they take part in."""
    if not attack.share:
        return frozenset()
    count = int(attack.share * clients + 0.5)
    return frozenset(rng.numpy_stream(seed, "hostile").permutation(clients)[:count].tolist())


class Corrupt(Stage):
    """Applies the attack to the uploads or labels of hostile clients."""

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
        # On decoded tensors: flipping the sign of both low-rank factors would cancel out.
        sent, received = upload.decode(upload.payload), upload.decode(upload.received)
        if self.attack.kind != "random_labels":  # its labels were attacked instead
            generator = rng.torch_stream(self.seed, "attack", upload.client, upload.round)
            sent = corrupt(sent, received, self.attack, generator)
        return replace(upload, payload=sent)


def corrupt(upload: Payload, received: Payload, attack: Attack, generator: torch.Generator) -> Payload:
    """The corrupted form of an upload; class ids stay valid, so that it passes the server's checks."""
    scale = attack.strength * root_mean_square(upload)
    # A network is reflected about the broadcast one, which reverses the client's update.
    centred = "ids" not in upload and all(n in received and received[n].shape == t.shape for n, t in upload.items())
    corrupted = dict(upload)
    for name, values in upload.items():
        if not values.is_floating_point() or name == PRESENT:
            continue  # the attack leaves the set of classes alone and corrupts their vectors
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
    """A copy of the labels in which a share `strength` of those at the positions is random."""
    stream = rng.numpy_stream(seed, "random_labels", client)
    chosen = positions[torch.from_numpy(stream.random(len(positions)) < attack.strength)]
    changed = labels.clone()
    changed[chosen] = torch.from_numpy(stream.integers(classes, size=len(chosen))).to(labels.dtype)
    return changed
