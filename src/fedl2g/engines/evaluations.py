"""Which clients are evaluated after a round; a cache, since one whose model has not changed is not evaluated again."""

from __future__ import annotations

from collections.abc import Sequence

from fedl2g import rng
from fedl2g.engines.base import Evaluation
from fedl2g.experiment import Experiment
from fedl2g.methods.base import Traits


def evaluated_clients(experiment: Experiment, round: int) -> Sequence[int]:
    """The clients to evaluate after a round (0: before the first): none, all, or a sample from its own stream."""
    if round % experiment.evaluate_every != 0 and round != experiment.rounds:
        return ()
    clients, count = experiment.clients, experiment.evaluated_per_round
    if count == clients:
        return range(clients)
    stream = rng.numpy_stream(experiment.seed, "evaluated", round)
    return sorted(stream.choice(clients, size=count, replace=False).tolist())


def evaluated_when_trained(experiment: Experiment, traits: Traits, round: int) -> Sequence[int]:
    """Those of them whose evaluation needs nothing of the server, so that it can be sent with the trained round."""
    return () if traits.predicts_with_broadcast else evaluated_clients(experiment, round)


class Evaluations:
    """The last valid evaluation of each client; disabled for methods whose predictions depend on the broadcast."""

    def __init__(self, traits: Traits) -> None:
        self._enabled = not traits.predicts_with_broadcast
        self._cached: dict[int, Evaluation] = {}

    def __contains__(self, client: int) -> bool:
        return client in self._cached

    def __getitem__(self, client: int) -> Evaluation:
        return self._cached[client]

    def add(self, evaluation: Evaluation) -> None:
        """Cache an evaluation."""
        if self._enabled:
            self._cached[evaluation.client] = evaluation

    def forget(self, client: int) -> None:
        """Invalidate the evaluation of a client whose model has changed."""
        self._cached.pop(client, None)

    def clear(self) -> None:
        """Invalidate all evaluations."""
        self._cached.clear()
