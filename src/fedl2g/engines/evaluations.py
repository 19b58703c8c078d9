"""The last evaluation of each client, as long as it holds: a model that has not moved is not evaluated again."""

from __future__ import annotations

from fedl2g.engines.base import Evaluation
from fedl2g.methods.base import Traits


class Evaluations:
    """Evaluations by client; none holds where predictions depend on what the server sends."""

    def __init__(self, traits: Traits) -> None:
        self._hold = not traits.predicts_with_broadcast
        self._known: dict[int, Evaluation] = {}

    def __contains__(self, client: int) -> bool:
        return client in self._known

    def __getitem__(self, client: int) -> Evaluation:
        return self._known[client]

    def add(self, evaluation: Evaluation) -> None:
        """Remember an evaluation."""
        if self._hold:
            self._known[evaluation.client] = evaluation

    def forget(self, client: int) -> None:
        """A client has moved."""
        self._known.pop(client, None)

    def clear(self) -> None:
        """All clients were brought to another state."""
        self._known.clear()
