"""Counts and checks the clients' replies, and refuses the unusable ones."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from fedl2g.engines.base import Absent, Answer, Rejected
from fedl2g.errors import Diverged, PayloadError
from fedl2g.methods.base import Reply, Traits
from fedl2g.payload import Specification, nbytes
from fedl2g.round.policy import Policy, State
from fedl2g.round.record import RoundRecord
from fedl2g.round.timing import Timing

_log = logging.getLogger(__name__)
_LOSS_LIMIT = 1e9  # cross entropy far beyond any network that still learns
_NAME_LIMIT = 64  # characters shown of a received name


class Inbox(Policy):
    """Collects the answers of a round.

    A round in which replies were refused and none was usable counts as divergence: at once if several replies were
    refused, after two such rounds in a row if it was only one. With `patient` it never does.
    """

    def __init__(self, traits: Traits, expected: Specification, timing: Timing, *, patient: bool) -> None:
        self.traits = traits
        self.expected = expected
        self.timing = timing
        self.patient = patient
        self._empty = False  # whether the last round had refused replies and no usable one
        self._clear()

    def _clear(self) -> None:
        self._bytes = 0
        self._refused: dict[int, str] = {}
        self._missing: dict[int, str] = {}
        self._losses: dict[int, float] = {}
        self._metrics: dict[str, dict[int, float]] = {}

    def check(self, reply: Reply) -> None:
        """Raise PayloadError if the reply cannot be used."""
        loss = reply.report.loss
        if loss is not None and not 0 <= loss < _LOSS_LIMIT:  # also refuses NaN
            raise PayloadError(f"its training loss is {loss:g}; expected a number from 0 to {_LOSS_LIMIT:g}")
        self._check_metrics(reply.report.metrics)
        self.traits.codec.check(reply.payload, self.expected)

    def _check_metrics(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            if name not in self.traits.metrics:
                known = ", ".join(self.traits.metrics) or "none"
                raise PayloadError(f"its report has an unknown number {name[:_NAME_LIMIT]!r}; expected {known}")
            low, high = self.traits.metrics[name]
            if not low <= value <= high:  # also refuses NaN
                raise PayloadError(f"its {name} is {value}; expected a number from {low:g} to {high:g}")

    def collect(self, round: int, answers: Iterable[Answer]) -> list[Reply]:
        """The usable replies, ordered by client because float sums depend on the order."""
        self._clear()
        accepted = []
        for answer in answers:
            self.timing.client(answer.report)
            match answer:
                case Rejected():
                    self._refused[answer.client] = answer.reason
                case Absent():
                    self._missing[answer.client] = answer.reason
                case Reply() if self._accept(round, answer):
                    accepted.append(answer)
        empty = bool(self._refused) and not accepted
        if empty and not self.patient and (len(self._refused) > 1 or self._empty):
            raise Diverged(f"round {round}: no reply could be used ({next(iter(self._refused.values()))})")
        self._empty = empty
        accepted.sort(key=lambda reply: reply.client)
        self._losses = {reply.client: reply.report.loss for reply in accepted if reply.report.loss is not None}
        self._metrics = {
            name: values
            for name in self.traits.metrics
            if (values := {r.client: r.report.metrics[name] for r in accepted if name in r.report.metrics})
        }
        return accepted

    def _accept(self, round: int, reply: Reply) -> bool:
        self._bytes += nbytes(reply.payload)
        try:
            with self.timing.server():
                self.check(reply)
        except PayloadError as error:
            self._refused[reply.client] = str(error)
            _log.warning("round %d: the reply of client %d is refused: %s", round, reply.client, error)
            return False
        return True

    def write(self, record: RoundRecord, asked: Sequence[int]) -> None:
        record.up_bytes = self._bytes
        record.refused |= self._refused
        record.missing |= self._missing
        record.client_losses = self._losses
        record.loss = statistics.fmean(self._losses.values()) if self._losses else None
        record.client_metrics = self._metrics
        record.metrics = {name: statistics.fmean(values.values()) for name, values in self._metrics.items()}

    def state_dict(self) -> State:
        return {}, {"empty": self._empty}

    def load_state_dict(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        self._clear()
        self._empty = bool(values["empty"])
