"""A node: serves the requests for one client, whose state is in a store on the node's disk."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fedl2g.engines.base import Evaluation
from fedl2g.engines.evaluations import evaluated_when_trained
from fedl2g.engines.flower.messages import Kept, Request
from fedl2g.engines.flower.store import NodeStore, TrainedRound
from fedl2g.engines.host import Host
from fedl2g.methods.base import Reply
from fedl2g.methods.registry import get_method
from fedl2g.payload import Payload
from fedl2g.process import one_thread
from fedl2g.setup import Setup

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Node:
    """One client, its data and its store; no state is kept in memory between requests."""

    client: int
    setup: Setup
    device: torch.device
    root: Path  # of the store

    def train(self, request: Request) -> Reply:
        """Train in a round; a repeated request is answered from the store without training again."""
        store = self._store(request)
        with store.lock(), one_thread():
            self._keep_best(store, request)
            if request.round in store.rounds():
                done = store.read(request.round)
                if done.reply is not None and done.request == request.digest:
                    _log.info(
                        "client %d: round %d is already trained; answering from the store", self.client, request.round
                    )
                    return done.reply
            host = self._host(store.before(request.round))
            reply = host.train(self.client, request.round, request.payload)
            store.add(TrainedRound(request.round, host.state(self.client), reply, request.digest))
            return reply

    def evaluate(self, request: Request) -> Evaluation:
        """Evaluate the model in its state after the request's round."""
        store = self._store(request)
        with store.lock(), one_thread():
            self._keep_best(store, request)
            start = store.before(request.round + 1)
            host = self._host(start)
            (evaluation,) = host.evaluate([self.client], request.payload)
            if start is not None and host.method.traits.predicts_with_broadcast:
                self._keep_received(store, replace(start, state=host.state(self.client)), request.payload)
            return evaluation

    def evaluate_trained(self, request: Request, reply: Reply) -> Evaluation | None:
        """The evaluation to send with a trained round, which spares the server a request.

        None if none is due, or if it needs what the server sends next. None too if it fails: the upload must not be
        lost with it, and the server asks for it separately.
        """
        traits = get_method(request.experiment.method.name).traits
        due = self.client in evaluated_when_trained(request.experiment, traits, request.round)
        if not due or not traits.moves(reply.report.steps):
            return None
        try:
            return self.evaluate(request)
        except Exception:
            _log.exception("client %d: the evaluation after round %d failed", self.client, request.round)
            return None

    def keep_best(self, request: Request) -> Kept:
        """At the end of a run, keep the model of the best round, which the request names."""
        store = self._store(request)
        with store.lock():
            self._keep_best(store, request)
        return Kept(self.client)

    def _keep_best(self, store: NodeStore, request: Request) -> None:
        if request.best is not None:
            store.keep_best(request.best)

    def _keep_received(self, store: NodeStore, trained: TrainedRound, payload: Payload) -> None:
        """Save what was received for predictions (a shared head, prototypes): an export of the model needs it."""
        before = trained.received
        same = before.keys() == payload.keys() and all(torch.equal(before[name], t) for name, t in payload.items())
        if not same:
            store.write(replace(trained, received=payload))

    def _store(self, request: Request) -> NodeStore:
        return NodeStore(self.root, request.run, request.experiment.fingerprint_with(None), self.client)

    def _host(self, start: TrainedRound | None) -> Host:
        host = Host(self.setup, self.device)
        if start is not None:
            host.load_state(self.client, dict(start.state))
        return host
