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

import dataclasses
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedl2g import rng
from fedl2g.experiment.policies import Privacy
from fedl2g.payload import Payload, Specification, TensorSpec
from fedl2g.round.accounting import epsilon_spent, solve_noise_multiplier

if TYPE_CHECKING:
    from fedl2g.methods.base import Report

KEY_VARIABLE = "FEDL2G_NOISE_KEY"
_MARGIN = 1 - 1e-6  # numbers are rounded after clipping: stay below the bound


@dataclass(frozen=True)
class Protection:
    """What is done to uploads on the clients and to their sum on the server."""

    settings: Privacy
    clients: int
    participation: float
    rounds: int
    seed: int

    @property
    def on(self) -> bool:
        """Whether there is a guarantee."""
        return self.settings.on

    @property
    def dense(self) -> bool:
        """Whether class vectors are sent for every class."""
        return self.settings.dense_uploads or self.on

    @property
    def counted(self) -> bool:
        """Whether dense uploads say which classes the client has, in an entry that is clipped and noised like all."""
        return self.settings.denominator == "counted" or not self.on

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
    def _std(self) -> float:
        return self.noise_multiplier * (self.settings.clip or 0.0)

    @property
    def _expected_participants(self) -> float:
        return self.participation * self.clients

    def epsilon(self, rounds: int, participations: int) -> float:
        """What has been spent after so many rounds, of which no client took part in more than `participations`."""
        steps = rounds if self.settings.noise == "server" else participations
        return epsilon_spent(self.noise_multiplier, self._rate, steps, self.settings.delta)

    def participants(self, round: int) -> list[int]:
        """Poisson sampling: each client by itself with the chance `participation`."""
        draws = rng.numpy_stream(self.seed, _keyed("poisson"), round).random(self.clients)
        return (draws < self.participation).nonzero()[0].tolist()

    def protect(self, upload: Payload, received: Payload, classes: int, client: int, round: int) -> Payload:
        """What leaves the client in place of its upload."""
        if not upload:
            return upload
        start = {} if "ids" in upload else received
        sent = self.densified(upload, classes)
        if not self.on:
            return sent
        vector = self._clipped(self._vector(sent, start))
        if self.settings.noise == "client":
            vector = vector + self._noise_for(vector, "privacy_client", client, round)
        return self._payload(vector, sent, start)

    def reticent(self, report: Report) -> Report:
        """With the guarantee against the server, a report without what it would say about the client's data."""
        if not self.on or self.settings.noise == "server":
            return report
        return dataclasses.replace(report, samples=1, steps=min(1, report.steps), loss=None)

    def upload_specification(self, expected: Specification, classes: int) -> Specification:
        """What arrives when a method's reply of this specification was protected."""
        if not self.dense or set(expected) != {"ids", "rows"}:
            return expected
        ids, rows = expected["ids"], expected["rows"]
        dense = {
            "ids": TensorSpec((classes,), ids.dtype, ids.below),
            "rows": TensorSpec((classes, rows.shape[1]), rows.dtype),
        }
        return {**dense, "present": TensorSpec((classes,), rows.dtype)} if self.counted else dense

    def combine_by_class(
        self, payloads: Sequence[Payload], expected: Specification, round: int
    ) -> tuple[Tensor, Tensor]:
        """The noisy sum of class vectors, divided by what is not private: (class ids, rows)."""
        spec = expected["rows"]
        like = {name: torch.zeros([int(n) for n in s.shape], dtype=s.dtype) for name, s in expected.items()}
        like["ids"] = torch.arange(len(like["ids"]))
        total = self._payload(self._total(payloads, like, {}, round), like, {}, torch.float64)
        if self.settings.denominator == "fixed":
            return like["ids"], (total["rows"] / self._expected_participants).to(spec.dtype)
        noise = self._std / self.settings.count_weight
        if self.settings.noise == "client":
            noise *= max(1, len(payloads)) ** 0.5
        ids = (total["present"] > 3 * noise).nonzero().flatten()  # a smaller count may be noise: as if nobody had it
        return ids, (total["rows"][ids] / total["present"][ids, None]).to(spec.dtype)

    def combine(self, payloads: Sequence[Payload], reference: Payload, round: int) -> Payload:
        """The network that the clients started from, moved by the noisy sum of their changes over the fixed number."""
        total = self._total(payloads, reference, reference, round)
        return self._payload(total / self._expected_participants, reference, reference)

    def _total(self, payloads: Sequence[Payload], like: Payload, start: Payload, round: int) -> Tensor:
        total = torch.zeros_like(self._vector(like, start))
        for payload in payloads:
            vector = self._vector(payload, start)
            # With the noise on the server, the bound must hold whatever a client did.
            total += self._clipped(vector) if self.settings.noise == "server" else vector
        return total + self._noise_for(total, "privacy_server", round) if self.settings.noise == "server" else total

    def _clipped(self, vector: Tensor) -> Tensor:
        assert self.settings.clip is not None
        norm = float(torch.linalg.vector_norm(vector))
        return vector * min(1.0, self.settings.clip * _MARGIN / max(norm, 1e-300))

    def _noise_for(self, vector: Tensor, purpose: str, *ids: int) -> Tensor:
        """Gaussian noise that belongs to this very vector.

        A replay after an interruption, with the same vector, repeats its noise; another vector in the same place gets
        other noise, since the difference of two vectors under the same noise would be bare.
        """
        name = "/".join([str(self.seed), _keyed(purpose), *map(str, ids)])
        digest = hashlib.blake2b(vector.numpy().tobytes(), key=hashlib.sha256(name.encode()).digest()).digest()
        # 128 bits of it count here; torch's generator would take 32, which can be searched through.
        generator = np.random.default_rng(int.from_bytes(digest, "big"))
        return self._std * torch.from_numpy(generator.standard_normal(vector.shape))

    def densified(self, upload: Payload, classes: int) -> Payload:
        """Class vectors with a row for every class, if that is asked for and has not been done; others as they are."""
        done = "present" in upload or ("ids" in upload and len(upload["ids"]) == classes and not self.counted)
        if not self.dense or "ids" not in upload or done:
            return dict(upload)
        ids, rows = upload["ids"], upload["rows"]
        dense = rows.new_zeros(classes, rows.shape[1])
        dense[ids] = rows
        sent = {"ids": torch.arange(classes), "rows": dense}
        if self.counted:
            sent["present"] = rows.new_zeros(classes)
            sent["present"][ids] = 1
        return sent

    def _vector(self, payload: Payload, start: Payload) -> Tensor:
        """All floating-point values of a payload, less those of `start`, as one vector."""
        return torch.cat(
            [
                ((t.double() - start[n].double()) if n in start else t.double() * self._weight(n)).flatten()
                for n, t in sorted(payload.items())
                if t.is_floating_point()
            ]
        )

    def _payload(self, vector: Tensor, like: Payload, start: Payload, dtype: torch.dtype | None = None) -> Payload:
        """`_vector` undone."""
        made, at = dict(like), 0
        for name, tensor in sorted(like.items()):
            if tensor.is_floating_point():
                values = vector[at : at + tensor.numel()].reshape(tensor.shape)
                at += tensor.numel()
                values = start[name].double() + values if name in start else values / self._weight(name)
                made[name] = values.to(dtype or tensor.dtype)
        return made

    def _weight(self, name: str) -> float:
        return self.settings.count_weight if name == "present" and self.on else 1.0


def sparse(payload: Payload) -> Payload:
    """The class vectors of a dense upload without guarantee that the client has."""
    there = payload["present"] > 0.5
    return {"ids": payload["ids"][there], "rows": payload["rows"][there]}


def _keyed(purpose: str) -> str:
    """Noise that must stay secret depends on a key that only this machine knows, where one is set."""
    key = os.environ.get(KEY_VARIABLE)
    return f"{purpose}/{key}" if key else purpose
