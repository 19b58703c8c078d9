"""Combines the checked replies of a round by the experiment's rule, or with its privacy guarantee.

The federation holds the aggregator and hands the method what came out of it. A method sees single replies only if its
traits say so, and then no rule and no guarantee is accepted: `fedl2g.experiment` refuses the experiment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedl2g.experiment.policies import Aggregation
from fedl2g.methods.base import Combined, Reply, Traits
from fedl2g.payload import PRESENT, Payload, Specification
from fedl2g.privacy.mechanism import Mechanism
from fedl2g.registry import rules
from fedl2g.round.policy import Policy
from fedl2g.uploads.dense import Dense


class Aggregator(Policy):
    """Makes one `Combined` out of the replies of a round; None when there is nothing for the method to learn."""

    def __init__(self, traits: Traits, expected: Specification, dense: Dense | None) -> None:
        self.traits = traits
        self.expected = expected  # what a method's upload looks like
        self.dense = dense
        self.arriving = dense.specification(expected) if dense is not None else expected

    def combine(self, round: int, replies: Sequence[Reply], broadcast: Payload) -> Combined | None:
        """What the replies, ordered by client, come to; `broadcast` is what the clients of this round received."""
        raise NotImplementedError

    def decoded(self, payload: Payload) -> Payload:
        """What a reply stands for, as the method's client made it."""
        if self.dense is not None:
            payload = self.dense.unpack(payload)
        return self.traits.codec.decode(payload, self.expected)

    def started_from(self, broadcast: Payload) -> Payload:
        """The network that the clients of a round started from."""
        return self.traits.codec.decode(broadcast, self.expected)


class RawReplies(Aggregator):
    """Hands over the replies by themselves, to a method that asks for that."""

    def combine(self, round: int, replies: Sequence[Reply], broadcast: Payload) -> Combined | None:
        if not replies:
            return None
        return Combined({}, tuple(replace(reply, payload=self.decoded(reply.payload)) for reply in replies))


class ByRule(Aggregator):
    """Combines by a rule: the mean, or a robust one."""

    def __init__(
        self, settings: Aggregation, traits: Traits, expected: Specification, dense: Dense | None = None
    ) -> None:
        super().__init__(traits, expected, dense)
        self.settings = settings
        self.rule = rules.get(settings.rule)

    def combine(self, round: int, replies: Sequence[Reply], broadcast: Payload) -> Combined | None:
        if not replies or self.traits.uploads == "nothing":
            return None
        payloads = [self.decoded(reply.payload) for reply in replies]
        weights = [r.weight for r in replies] if any(r.weight != 1.0 for r in replies) else None
        if self.traits.uploads == "network":
            sizes = [float(r.report.samples) for r in replies] if self.traits.weighted_by_samples else None
            start = self.started_from(broadcast)
            return Combined(self.rule.networks(payloads, start, weights, sizes, self.settings))
        if not self.traits.every_row:
            return Combined(self.rule.class_vectors(payloads, weights, self.settings))
        if self.settings.rule != "mean":
            return Combined(_weighted(self.rule.class_vectors(payloads, weights, self.settings)))
        each = [torch.full_like(p["rows"][:, 0], r.weight) for p, r in zip(payloads, replies, strict=True)]
        rows = {name: torch.cat([p[name] for p in payloads]) for name in ("ids", "rows")}
        return Combined({**rows, "weights": torch.cat(each)})


class Private(Aggregator):
    """Combines by the mechanism of the guarantee; on the server it adds noise even where nobody replied.

    That nobody did is private too.
    """

    def __init__(self, mechanism: Mechanism, traits: Traits, expected: Specification, dense: Dense) -> None:
        super().__init__(traits, expected, dense)
        self.mechanism = mechanism
        self.on_server = mechanism.settings.noise == "server"

    def combine(self, round: int, replies: Sequence[Reply], broadcast: Payload) -> Combined | None:
        if self.traits.uploads == "nothing" or not (replies or self.on_server):
            return None
        payloads = [reply.payload for reply in replies]
        if self.traits.uploads == "network":
            return Combined(self._network(round, payloads, self.started_from(broadcast)))
        combined = self._class_vectors(round, payloads)
        return Combined(_weighted(combined) if self.traits.every_row else combined)

    def _class_vectors(self, round: int, payloads: Sequence[Payload]) -> Payload:
        """The noisy sum of class vectors, divided by what is not private."""
        settings, dtype = self.mechanism.settings, self.arriving["rows"].dtype
        like = {name: torch.zeros([int(n) for n in s.shape], dtype=s.dtype) for name, s in self.arriving.items()}
        like["ids"] = torch.arange(len(like["ids"]))
        total = self.mechanism.payload(self._total(round, payloads, like, {}), like, {}, torch.float64)
        if settings.denominator == "fixed":
            rows = (total["rows"] / self.mechanism.expected_participants).to(dtype)
            return {"ids": like["ids"], "rows": rows}
        noise = self.mechanism.std / settings.count_weight
        if not self.on_server:
            noise *= max(1, len(payloads)) ** 0.5
        ids = (total[PRESENT] > 3 * noise).nonzero().flatten()  # a smaller count may be noise: as if nobody had it
        return {"ids": ids, "rows": (total["rows"][ids] / total[PRESENT][ids, None]).to(dtype)}

    def _network(self, round: int, payloads: Sequence[Payload], start: Payload) -> Payload:
        """The network that the clients started from, moved by the noisy sum of their changes over the fixed number."""
        total = self._total(round, payloads, start, start)
        return self.mechanism.payload(total / self.mechanism.expected_participants, start, start)

    def _total(self, round: int, payloads: Sequence[Payload], like: Payload, start: Payload) -> Tensor:
        total = torch.zeros_like(self.mechanism.vector(like, start))
        for payload in payloads:
            vector = self.mechanism.vector(payload, start)
            # With the noise on the server, the bound must hold whatever a client did.
            total += self.mechanism.clipped(vector) if self.on_server else vector
        return total + self.mechanism.noise_for(total, "privacy_server", round) if self.on_server else total


def _weighted(combined: Payload) -> Payload:
    return {**combined, "weights": torch.ones_like(combined["rows"][:, 0])}
