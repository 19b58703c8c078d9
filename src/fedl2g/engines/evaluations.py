"""A cache of evaluations: a client whose model has not changed is not evaluated again."""

from __future__ import annotations

from fedl2g.engines.base import Evaluation
from fedl2g.methods.base import Traits


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
