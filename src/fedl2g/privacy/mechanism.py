"""Client-level differential privacy of uploads: clip, add Gaussian noise, divide by what is not private.

The mechanism of one round, with C = clip, z = noise multiplier, q = participation, N = clients:

    each client takes part with chance q, independently (Poisson sampling)
    S = sum over the participants of  u * min(1, C / |u|),     u the whole upload as one vector
    released: (S + e) / (q N),     e ~ N(0, (z C)^2) in every coordinate

u is: of class vectors, a row for every class (zeros where the client has none), with `counted` also count_weight for
each class it has; of a network, its change since the broadcast. Neighbouring federations differ in one client, present
or not (its upload all zeros), so the sum moves by at most C. Nothing else is used: no sizes, no counts without noise.

`noise = server`: the server adds e to the sum. The guarantee holds for what it sends out afterwards.
`noise = client`: each client adds e of that deviation to its own upload. The guarantee holds for each upload by itself,
against the server too, for a client that is known to take part: sampling does not amplify it.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedl2g.experiment import Experiment
from fedl2g.experiment.policies import Privacy
from fedl2g.payload import PRESENT, Payload
from fedl2g.privacy.accounting import epsilon_spent, solve_noise_multiplier

KEY_VARIABLE = "FEDL2G_NOISE_KEY"
_MARGIN = 1 - 1e-6  # numbers are rounded after clipping: stay below the bound


@dataclass(frozen=True)
class Mechanism:
    """The clipping and the noise of a guarantee, and what they spend."""

    settings: Privacy
    clients: int
    participation: float
    rounds: int
    seed: int

    @classmethod
    def of(cls, experiment: Experiment) -> Mechanism | None:
        """The mechanism of an experiment; None where there is no guarantee."""
        e = experiment
        return cls(e.privacy, e.clients, e.participation, e.rounds, e.seed) if e.privacy.on else None

    @property
    def noise_multiplier(self) -> float:
        """z: given, or solved for the epsilon that was asked for."""
        s = self.settings
        if s.noise_multiplier is not None:
            return s.noise_multiplier
        assert s.epsilon is not None
        return solve_noise_multiplier(s.epsilon, s.delta, self._rate, self.rounds)

    @property
    def _rate(self) -> float:
        return self.participation if self.settings.noise == "server" else 1.0

    @property
    def std(self) -> float:
        """The deviation of the noise in each coordinate."""
        return self.noise_multiplier * (self.settings.clip or 0.0)

    @property
    def expected_participants(self) -> float:
        """q N: what sums are divided by, since how many took part is private."""
        return self.participation * self.clients

    def epsilon(self, rounds: int, participations: int) -> float:
        """What has been spent after so many rounds, of which no client took part in more than `participations`."""
        steps = rounds if self.settings.noise == "server" else participations
        return epsilon_spent(self.noise_multiplier, self._rate, steps, self.settings.delta)

    def clipped(self, vector: Tensor) -> Tensor:
        """The vector, shortened to the bound where it is longer."""
        assert self.settings.clip is not None
        norm = float(torch.linalg.vector_norm(vector))
        return vector * min(1.0, self.settings.clip * _MARGIN / max(norm, 1e-300))

    def noise_for(self, vector: Tensor, purpose: str, *ids: int) -> Tensor:
        """Gaussian noise that belongs to this very vector.

        A replay after an interruption, with the same vector, repeats its noise; another vector in the same place gets
        other noise, since the difference of two vectors under the same noise would be bare.
        """
        name = "/".join([str(self.seed), with_key(purpose), *map(str, ids)])
        digest = hashlib.blake2b(vector.numpy().tobytes(), key=hashlib.sha256(name.encode()).digest()).digest()
        # 128 bits of it count here; torch's generator would take 32, which can be searched through.
        generator = np.random.default_rng(int.from_bytes(digest, "big"))
        return self.std * torch.from_numpy(generator.standard_normal(vector.shape))

    def vector(self, payload: Payload, start: Payload) -> Tensor:
        """All floating-point values of a payload, less those of `start`, as one vector."""
        return torch.cat(
            [
                ((t.double() - start[n].double()) if n in start else t.double() * self._weight(n)).flatten()
                for n, t in sorted(payload.items())
                if t.is_floating_point()
            ]
        )

    def payload(self, vector: Tensor, like: Payload, start: Payload, dtype: torch.dtype | None = None) -> Payload:
        """`vector` undone."""
        made, at = dict(like), 0
        for name, tensor in sorted(like.items()):
            if tensor.is_floating_point():
                values = vector[at : at + tensor.numel()].reshape(tensor.shape)
                at += tensor.numel()
                values = start[name].double() + values if name in start else values / self._weight(name)
                made[name] = values.to(dtype or tensor.dtype)
        return made

    def _weight(self, name: str) -> float:
        return self.settings.count_weight if name == PRESENT else 1.0


def with_key(purpose: str) -> str:
    """The purpose of a random stream that must stay secret: it depends on a key of this machine, where one is set."""
    key = os.environ.get(KEY_VARIABLE)
    return f"{purpose}/{key}" if key else purpose
