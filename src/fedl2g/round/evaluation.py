"""The policy of evaluation: which clients are due, and how their results are pooled."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from fedl2g.engines.base import Evaluation, Rejected
from fedl2g.engines.evaluations import evaluated_clients
from fedl2g.experiment import Experiment
from fedl2g.round.policy import Policy
from fedl2g.round.record import Accuracy, RoundRecord


class Evaluator(Policy):
    """Evaluates all clients, or a sample of them, every `evaluate_every` rounds.

    `groups` names sets of clients whose pooled accuracy is recorded separately.
    """

    def __init__(self, experiment: Experiment, groups: Mapping[str, frozenset[int]]) -> None:
        self.experiment = experiment
        self.groups = groups
        self._accuracy: Accuracy | None = None
        self._refused: dict[int, str] = {}

    def due(self, round: int) -> Sequence[int]:
        """The clients to evaluate after this round (round 0: before the first)."""
        return evaluated_clients(self.experiment, round)

    def collect(self, answers: Iterable[Evaluation | Rejected]) -> None:
        """Pool the results; note the clients whose evaluation was refused."""
        found = []
        for answer in answers:
            if isinstance(answer, Evaluation):
                found.append(answer)
            else:
                self._refused[answer.client] = f"its evaluation: {answer.reason}"
        self._accuracy = pooled_accuracy(found, self.groups)

    def write(self, record: RoundRecord, asked: Sequence[int]) -> None:
        record.accuracy, self._accuracy = self._accuracy, None
        record.refused = {**self._refused, **record.refused}
        self._refused = {}


def pooled_accuracy(evaluations: Sequence[Evaluation], groups: Mapping[str, frozenset[int]]) -> Accuracy | None:
    """The accuracy over all evaluated clients; None if there are none."""
    if not evaluations:
        return None
    samples = sum(e.samples for e in evaluations)
    clients = {e.client: e.correct / e.samples for e in evaluations}
    names = dict.fromkeys(name for e in evaluations for name in e.others)
    others = {name: sum(e.others.get(name, 0) for e in evaluations) / samples for name in names}
    for name, members in groups.items():
        group = [e for e in evaluations if e.client in members]
        if group:
            others[name] = sum(e.correct for e in group) / sum(e.samples for e in group)
    held = sum(e.validation_samples for e in evaluations)
    balanced = {e.client: e.balanced_accuracy for e in evaluations if e.balanced_accuracy is not None}
    macro_f1 = {e.client: e.macro_f1 for e in evaluations if e.macro_f1 is not None}
    return Accuracy(
        pooled=sum(e.correct for e in evaluations) / samples,
        mean=statistics.fmean(clients.values()),
        std=statistics.pstdev(clients.values()),
        clients=clients,
        others=others,
        samples={e.client: e.samples for e in evaluations},
        validation=sum(e.validation_correct for e in evaluations) / held if held else None,
        balanced=statistics.fmean(balanced.values()) if balanced else None,
        macro_f1=statistics.fmean(macro_f1.values()) if macro_f1 else None,
        balanced_clients={client: round(value, 4) for client, value in balanced.items()},
        macro_f1_clients={client: round(value, 4) for client, value in macro_f1.items()},
    )
