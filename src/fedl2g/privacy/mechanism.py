"""Client-level differential privacy of uploads: clip, add Gaussian noise, divide by a public constant.

The mechanism of one round, with C = clip, z = noise multiplier, q = participation, N = clients:

    each client takes part with probability q, independently (Poisson sampling)
    S = sum over the participants of  u * min(1, C / |u|),     u the whole upload as one vector
    released: (S + e) / (q N),     e ~ N(0, (z C)^2) in every coordinate

For class vectors, u has a row for every class (zeros where the client has none) and, with `counted`, count_weight for
each class the client has; for a network, u is its change since the broadcast. Neighbouring federations differ in the
presence of one client (an absent one uploads zeros), so the sum changes by at most C. Nothing else is used: no train
set sizes, no counts without noise.

`noise = server`: the server adds e to the sum. The guarantee covers everything it sends afterwards.
`noise = client`: each client adds e of the same standard deviation to its own upload. The guarantee covers each single
upload, against the server too, for a client known to take part: there is no amplification by sampling.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedl2g.experiment import Experiment
from fedl2g.experiment.identity import SITES
from fedl2g.experiment.policies import Privacy
from fedl2g.payload import PRESENT, Payload
from fedl2g.privacy.accounting import epsilon_spent, solve_noise_multiplier
from fedl2g.privacy.noise_key import noise_key

_MARGIN = 1 - 1e-6  # keeps the norm within the bound despite rounding after clipping


@dataclass(frozen=True)
class Mechanism:
    """The clipping, the noise and the accounting of a privacy guarantee."""

    settings: Privacy
    clients: int
    participation: float
    rounds: int
    seed: int
    simulated: bool = True
    """Whether the noise follows from the public settings alone: the guarantee then protects nobody."""

    @classmethod
    def of(cls, experiment: Experiment) -> Mechanism | None:
        """The mechanism of an experiment; None without a guarantee."""
        e = experiment
        if not e.privacy.on:
            return None
        # Sites that draw the noise of their own uploads refuse to do so without a key.
        drawn_at_sites = e.dataset == SITES and e.privacy.noise == "client"
        simulated = noise_key() is None and not drawn_at_sites
        return cls(e.privacy, e.clients, e.participation, e.rounds, e.seed, simulated)

    @property
    def noise_multiplier(self) -> float:
        """z: as given, or solved for the requested epsilon."""
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
        """The standard deviation of the noise in each coordinate."""
        return self.noise_multiplier * (self.settings.clip or 0.0)

    @property
    def expected_participants(self) -> float:
        """q N: the divisor of sums, since the actual number of participants is private."""
        return self.participation * self.clients

    def epsilon(self, rounds: int, participations: int) -> float:
        """Epsilon spent after this many rounds, if no client took part in more than `participations` of them."""
        steps = rounds if self.settings.noise == "server" else participations
        return epsilon_spent(self.noise_multiplier, self._rate, steps, self.settings.delta)

    def clipped(self, vector: Tensor) -> Tensor:
        """The vector, scaled down to the bound if it is longer."""
        assert self.settings.clip is not None
        norm = float(torch.linalg.vector_norm(vector))
        return vector * min(1.0, self.settings.clip * _MARGIN / max(norm, 1e-300))

    def noise_for(self, vector: Tensor, purpose: str, *ids: int) -> Tensor:
        """Gaussian noise derived from the vector itself.

        A replay after an interruption, with the same vector, repeats the noise. A different vector gets different
        noise, since two vectors under the same noise would reveal their exact difference.
        """
        name = "/".join([str(self.seed), with_key(purpose), *map(str, ids)])
        digest = hashlib.blake2b(vector.numpy().tobytes(), key=hashlib.sha256(name.encode()).digest()).digest()
        # numpy uses 128 bits of the seed; torch's generator would use 32, which can be brute-forced.
        generator = np.random.default_rng(int.from_bytes(digest, "big"))
        return self.std * torch.from_numpy(generator.standard_normal(vector.shape))

    def vector(self, payload: Payload, start: Payload) -> Tensor:
        """All floating-point values of a payload, minus those of `start`, as one vector."""
        return torch.cat(
            [
                ((t.double() - start[n].double()) if n in start else t.double() * self._weight(n)).flatten()
                for n, t in sorted(payload.items())
                if t.is_floating_point()
            ]
        )

    def payload(self, vector: Tensor, like: Payload, start: Payload, dtype: torch.dtype | None = None) -> Payload:
        """Undo `vector`."""
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
    """The purpose of a secret random stream: includes this machine's key, if one is set."""
    key = noise_key()
    return f"{purpose}/{key}" if key else purpose
