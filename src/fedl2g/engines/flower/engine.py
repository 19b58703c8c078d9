"""An engine over Flower's Grid: sends requests to the clients' nodes, and collects and checks their replies."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from flwr.app import RecordDict

from fedl2g.engines.base import Answer, Check, Evaluation, Rejected
from fedl2g.engines.evaluations import Evaluations, evaluated_when_trained
from fedl2g.engines.flower import messages
from fedl2g.engines.flower.exchange import Exchange, Question
from fedl2g.engines.flower.messages import Kept, Request
from fedl2g.engines.flower.nodes import MessageGrid, Nodes
from fedl2g.engines.flower.terms import Clock, Limits, Terms
from fedl2g.errors import PayloadError
from fedl2g.methods.base import Reply
from fedl2g.methods.registry import get_method
from fedl2g.payload import Payload
from fedl2g.setup import Setup

_log = logging.getLogger(__name__)
_END_SECONDS = 60.0  # how long the end of a run waits for sites that have left


class GridEngine:
    """Training and evaluation of clients on nodes, common to deployment and simulation.

    `run` is the run's id, by which nodes separate the models of different runs; `keys` see `Nodes`.
    """

    def __init__(
        self,
        grid: MessageGrid,
        setup: Setup,
        run: str,
        terms: Terms,
        *,
        lanes: int,
        clock: Clock = time,
        keys: Mapping[bytes, int] | None = None,
    ) -> None:
        self.setup = setup
        self.run = run
        self.terms = terms
        self.lanes = lanes
        self.retries = terms.retries
        self.clock = clock
        self.limits = Limits.of(setup.experiment)
        self.nodes = Nodes(grid, setup.experiment.clients, terms, clock, keys)
        self.traits = get_method(setup.experiment.method.name).traits
        self.round = 0  # the last trained round
        self.best: int | None = None  # the best round so far, of which each request tells the nodes
        self.moved: set[int] = set()  # clients that may differ from their initial state
        self._evaluations = Evaluations(self.traits)

    def train(self, round: int, clients: Sequence[int], payload: Payload, check: Check) -> Iterator[Answer]:
        known = {client: self._evaluations[client] for client in clients if client in self._evaluations}
        unmoved = set(clients) - self.moved
        due = frozenset(evaluated_when_trained(self.setup.experiment, self.traits, round))
        for client in clients:  # a client whose reply gets lost may have trained nevertheless
            self._evaluations.forget(client)
            self.moved.add(client)

        def read(client: int, records: RecordDict) -> Reply:
            limit = self.limits.maximum_bytes
            trained, evaluated = messages.split_trained(records)
            reply = messages.unpack_reply(trained, client=client, run=self.run, round=round, limit=limit)
            if not self.traits.moves(reply.report.steps):
                if client in known:
                    self._evaluations.add(known[client])
                self.moved -= unmoved & {client}
            if self.retries:  # else all clients answer, and the federation handles a round without a usable reply
                check(reply)
            if evaluated is not None:
                try:
                    if client not in due or not self.traits.moves(reply.report.steps):
                        raise PayloadError("evaluation: none is due; expected a reply without one")
                    self._evaluations.add(self._unpack_evaluation(client, evaluated, round))
                except PayloadError as error:  # the reply itself is sound; `evaluate` asks again
                    _log.warning("round %d: the evaluation from client %d is refused: %s", round, client, error)
            return reply

        question = Question("train", round, self._pack(round, payload), read)
        limits = replace(self.limits, minimum=min(self.limits.minimum, len(clients)))
        yield from Exchange(question, clients, self.nodes, self.terms, limits, self.clock).answers()
        self.round = round

    def evaluate(self, clients: Sequence[int], payload: Payload) -> list[Evaluation | Rejected]:
        found: dict[int, Evaluation | Rejected] = {
            client: self._evaluations[client] for client in clients if client in self._evaluations
        }
        round = self.round

        def read(client: int, records: RecordDict) -> Evaluation:
            return self._unpack_evaluation(client, records, round)

        content = self._pack(round, payload if self.traits.predicts_with_broadcast else {})
        asked = [client for client in clients if client not in found]
        limits = replace(self.limits, minimum=0)
        exchange = Exchange(
            Question("evaluate", round, content, read), asked, self.nodes, self.terms, limits, self.clock
        )
        for answer in exchange.answers():
            match answer:
                case Evaluation():
                    self._evaluations.add(answer)
                    found[answer.client] = answer
                case Rejected():
                    found[answer.client] = answer
        return [found[client] for client in clients if client in found]

    def tell_best(self) -> None:
        """Tell all nodes the best round of the run, which is over; those that cannot be reached are left out."""
        round = self.round

        def read(client: int, records: RecordDict) -> Kept:
            return messages.unpack_kept(records, client=client, run=self.run, round=round)

        question = Question("evaluate.keep", round, self._pack(round, {}), read)
        limits = replace(self.limits, minimum=0, deadline_seconds=_END_SECONDS)
        clients = range(self.setup.experiment.clients)
        for _ in Exchange(question, clients, self.nodes, self.terms, limits, self.clock).answers():
            pass

    def revive(self) -> None:
        """Do nothing: nodes reconnect by themselves, and their clients are on their disks."""

    def forget(self) -> None:
        """Invalidate what is known of the clients' models, after they were restored."""
        self._evaluations.clear()
        self.moved.clear()

    def _unpack_evaluation(self, client: int, records: RecordDict, round: int) -> Evaluation:
        validated = self.setup.experiment.validation_fraction > 0
        return messages.unpack_evaluation(records, client=client, run=self.run, round=round, validated=validated)

    def _pack(self, round: int, payload: Payload) -> RecordDict:
        experiment, dataset = self.setup.experiment, self.setup.dataset
        request = Request(self.run, experiment, dataset.class_names, dataset.schema, round, payload, self.best)
        return messages.pack_request(request)
