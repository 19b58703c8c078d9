"""Builds the policies of an experiment. To add one, write a module in this package and list it here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from fedl2g.engines.base import HONEST_CLIENTS, Engine
from fedl2g.experiment import Experiment
from fedl2g.methods.base import AnyServerHalf, Traits
from fedl2g.methods.registry import get_method
from fedl2g.privacy.mechanism import Mechanism
from fedl2g.registry import samplers
from fedl2g.round.aggregator import Aggregator, ByRule, Private, RawReplies
from fedl2g.round.attackers import Attackers
from fedl2g.round.availability import Availability
from fedl2g.round.evaluation import Evaluator
from fedl2g.round.inbox import Inbox
from fedl2g.round.ledger import Ledger, PrivacyLedger
from fedl2g.round.policy import Policy
from fedl2g.round.sampler import Sampler
from fedl2g.round.timing import Timing
from fedl2g.uploads.attack import hostile_clients
from fedl2g.uploads.dense import Dense


@dataclass(frozen=True)
class Policies:
    """One policy for each part of a round, in the order in which they write the record."""

    sampler: Sampler
    inbox: Inbox
    availability: Availability
    aggregator: Aggregator
    ledger: Ledger
    attackers: Attackers
    evaluator: Evaluator
    timing: Timing

    def __iter__(self) -> Iterator[tuple[str, Policy]]:
        for entry in fields(self):
            yield entry.name, getattr(self, entry.name)


def make_policies(experiment: Experiment, server: AnyServerHalf, engine: Engine) -> Policies:
    """Make the policies of an experiment."""
    e = experiment
    traits = get_method(e.method.name).traits
    mechanism = Mechanism.of(e)
    aggregator = _aggregator(e, server, traits, mechanism)
    hostile = hostile_clients(e.attack, e.clients, e.seed)
    timing = Timing(e.execution.profile, engine.lanes)
    # With noise on the server, stopping because of refused replies would reveal private data.
    patient = engine.retries or (mechanism is not None and mechanism.settings.noise == "server")
    return Policies(
        sampler=samplers.get(e.sampler_name)(e),
        inbox=Inbox(traits, aggregator.arriving, timing, patient=patient),
        availability=Availability(e.availability, e.clients, e.seed),
        aggregator=aggregator,
        ledger=PrivacyLedger(mechanism, uploads=traits.uploads != "nothing") if mechanism is not None else Ledger(),
        attackers=Attackers(hostile),
        evaluator=Evaluator(e, {HONEST_CLIENTS: frozenset(range(e.clients)) - hostile} if hostile else {}),
        timing=timing,
    )


def _aggregator(
    experiment: Experiment, server: AnyServerHalf, traits: Traits, mechanism: Mechanism | None
) -> Aggregator:
    dense = Dense.of(experiment.privacy, server.task.classes)
    if traits.raw_replies:
        return RawReplies(traits, server.expected(), dense)
    if mechanism is not None and dense is not None:
        return Private(mechanism, traits, server.expected(), dense)
    return ByRule(experiment.aggregation, traits, server.expected(), dense)
