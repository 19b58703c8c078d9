"""Combines the checked replies of a round by the experiment's rule, or with its privacy guarantee.

A method gets the combined result, not single replies, unless its traits set `raw_replies`; `fedl2g.experiment` refuses
to combine such a method with a rule or a privacy guarantee.
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
    """Turns the replies of a round into one `Combined`, or None when there is nothing to update from."""

    def __init__(self, traits: Traits, expected: Specification, dense: Dense | None) -> None:
        self.traits = traits
        self.expected = expected  # the method's upload before it is packed for privacy
        self.dense = dense
        self.arriving = dense.specification(expected) if dense is not None else expected

    def combine(self, round: int, replies: Sequence[Reply], broadcast: Payload) -> Combined | None:
        """Combine the replies, ordered by client; `broadcast` is the payload the clients of this round received."""
        raise NotImplementedError

    def decoded(self, payload: Payload) -> Payload:
        """The upload as the method's client half made it."""
        if self.dense is not None:
            payload = self.dense.unpack(payload)
        return self.traits.codec.decode(payload, self.expected)

    def started_from(self, broadcast: Payload) -> Payload:
        """The network from which the clients of a round started."""
        return self.traits.codec.decode(broadcast, self.expected)


class RawReplies(Aggregator):
    """Passes the single replies on, for methods with `Traits.raw_replies`."""

    def combine(self, round: int, replies: Sequence[Reply], broadcast: Payload) -> Combined | None:
        if not replies:
            return None
        return Combined({}, tuple(replace(reply, payload=self.decoded(reply.payload)) for reply in replies))


class ByRule(Aggregator):
    """Combines replies by a registered rule: the mean, or a robust one."""

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
    """Combines replies under differential privacy.

    With noise on the server, noise is added even to a round without replies: that nobody replied is private too.
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
        """The noisy sum of class vectors over a public denominator: a fixed number, or the noisy counts."""
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
        ids = (total[PRESENT] > 3 * noise).nonzero().flatten()  # smaller counts may be noise alone
        return {"ids": ids, "rows": (total["rows"][ids] / total[PRESENT][ids, None]).to(dtype)}

    def _network(self, round: int, payloads: Sequence[Payload], start: Payload) -> Payload:
        """The start network plus the noisy sum of the clients' changes over the expected number of participants."""
        total = self._total(round, payloads, start, start)
        return self.mechanism.payload(total / self.mechanism.expected_participants, start, start)

    def _total(self, round: int, payloads: Sequence[Payload], like: Payload, start: Payload) -> Tensor:
        total = torch.zeros_like(self.mechanism.vector(like, start))
        for payload in payloads:
            vector = self.mechanism.vector(payload, start)
            # Noise on the server covers clipped vectors only, and a client cannot be trusted to have clipped its own.
            total += self.mechanism.clipped(vector) if self.on_server else vector
        return total + self.mechanism.noise_for(total, "privacy_server", round) if self.on_server else total


def _weighted(combined: Payload) -> Payload:
    return {**combined, "weights": torch.ones_like(combined["rows"][:, 0])}
