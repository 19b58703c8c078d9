"""What every engine offers to the federation."""

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


@dataclass(frozen=True)
class Evaluation:
    """How one client's predictions did on its own test set."""

    client: int
    samples: int
    correct: int
    others: dict[str, int]  # correct predictions of a method's further predictors, by name


@dataclass(frozen=True)
class Absent:
    """In place of a reply: why a client's answer did not arrive in time."""

    client: int
    reason: str
    report: Report = field(default_factory=lambda: Report(samples=0))  # of a training whose upload was lost


@dataclass(frozen=True)
class Rejected(Absent):
    """In place of a reply: why a client's answer, which did arrive, cannot be used."""


Answer = Reply | Absent
Check = Callable[[Reply], None]
"""Raises a PayloadError that says why a reply cannot be used."""


class WorkerLost(FedL2GError):
    """A process that held clients is gone; the run goes on from its last checkpoint after `Engine.revive`."""


class Engine(Protocol):
    """Where clients live and how payloads reach them."""

    lanes: int
    """How many clients can train at a time."""
    retries: bool
    """Whether it asks again by itself where too few replies can be used, or does what the settings say then."""

    def train(self, round: int, clients: Sequence[int], payload: Payload, check: Check) -> Iterator[Answer]:
        """Train clients; answers come in any order.

        `check` is for engines that decide how long to wait: they must know which replies can be used. The federation
        checks every reply itself.
        """

    def evaluate(self, clients: Sequence[int], payload: Payload) -> list[Evaluation | Rejected]:
        """Evaluate clients on their own test sets, ordered as asked, without those that cannot be reached."""

    def save(self, directory: Path) -> None:
        """Write the state of every client that has changed since it was built into the directory."""

    def restore(self, directory: Path | None) -> None:
        """Bring every client to the state in the directory (None, or no file: as freshly built)."""

    def revive(self) -> None:
        """Replace lost workers; `restore` must follow."""

    def close(self) -> None:
        """Let go of processes and memory."""


OpenEngine = Callable[[Setup, Path | None], Engine]
"""Opens an engine with all clients of a setup; the folder, if any, is for states that do not fit in memory."""


def register_engine(name: str, opener: OpenEngine) -> None:
    """Make an engine known by its name, for the setting `execution.engine`; its class is an opener, or a function."""
    engines.register(name, opener, opener)


def open_engine(setup: Setup, scratch: Path | None = None) -> Engine:
    """The engine that the experiment asks for, with all its clients."""
    return engines.get(setup.experiment.execution.engine)(setup, scratch)
