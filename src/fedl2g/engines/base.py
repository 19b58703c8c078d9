"""The interface between the federation and its engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fedl2g.errors import FedL2GError
from fedl2g.methods.base import Reply, Report
from fedl2g.payload import Payload
from fedl2g.registry import engines
from fedl2g.setup import Setup

HONEST_CLIENTS = "honest clients"  # under a simulated attack, the name of the others' accuracy


@dataclass(frozen=True)
class Evaluation:
    """How well one client predicts its own test and validation samples; counts by class never leave the client."""

    client: int
    samples: int
    correct: int
    others: dict[str, int]  # correct predictions of the method's additional predictors, by name
    balanced_accuracy: float | None = None
    macro_f1: float | None = None
    validation_samples: int = 0  # 0: the experiment has no validation samples
    validation_correct: int = 0


@dataclass(frozen=True)
class Absent:
    """Stands for a missing reply: why a client did not answer in time."""

    client: int
    reason: str
    report: Report = field(default_factory=lambda: Report(samples=0))  # of a trained round whose upload was lost


@dataclass(frozen=True)
class Rejected(Absent):
    """Stands for a reply that arrived but cannot be used, with the reason."""


Answer = Reply | Absent
Check = Callable[[Reply], None]
"""Raises PayloadError for a reply that cannot be used."""


class WorkerLost(FedL2GError):
    """A worker process died; the run can continue from its last checkpoint after `Engine.revive`."""


class Engine(Protocol):
    """Where clients live and how payloads reach them."""

    lanes: int
    """How many clients can train concurrently."""
    retries: bool
    """Whether the engine itself handles rounds with too few usable replies, by retrying or as the settings say."""

    def train(self, round: int, clients: Sequence[int], payload: Payload, check: Check) -> Iterator[Answer]:
        """Train clients and yield their answers in any order.

        `check` is for engines that decide how long to wait and so need to know which replies are usable. The federation
        checks every reply again.
        """

    def evaluate(self, clients: Sequence[int], payload: Payload) -> list[Evaluation | Rejected]:
        """Evaluate clients on their own test and validation sets, in the given order; without the unreachable ones."""

    def save(self, directory: Path) -> None:
        """Write the state of every client that has changed since it was built to the directory."""

    def restore(self, directory: Path | None) -> None:
        """Load every client's state from the directory; a client without a file there is reset to its initial state."""

    def revive(self) -> None:
        """Replace lost workers; `restore` must follow."""

    def close(self) -> None:
        """Release processes and memory."""


OpenEngine = Callable[[Setup, Path | None], Engine]
"""Opens an engine with all clients of a setup; the optional folder is for states that do not fit in memory."""


def register_engine(name: str, opener: OpenEngine) -> None:
    """Register an engine for the setting `execution.engine`; the opener is its class or a function."""
    engines.register(name, opener, opener)


def open_engine(setup: Setup, scratch: Path | None = None) -> Engine:
    """Open the engine that the experiment selects, with all its clients."""
    return engines.get(setup.experiment.execution.engine)(setup, scratch)
