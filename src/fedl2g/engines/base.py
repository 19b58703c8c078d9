"""What every engine offers to the federation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from fedl2g.errors import FedL2GError
from fedl2g.methods.base import Reply
from fedl2g.payload import Payload

if TYPE_CHECKING:
    from fedl2g.setup import Setup


@dataclass(frozen=True)
class Evaluation:
    """How one client's predictions did on its own test set."""

    client: int
    samples: int
    correct: int
    others: dict[str, int]  # correct predictions of a method's further predictors, by name


@dataclass(frozen=True)
class Absence:
    """In place of a reply: why a participant's answer did not arrive in time, or was refused on arrival."""

    client: int
    reason: str
    refused: bool = False


class WorkerLost(FedL2GError):
    """A process that held clients is gone; the run goes on from its last checkpoint after `Engine.revive`."""


class Engine(Protocol):
    """Where clients live and how payloads reach them."""

    def train(self, round: int, participants: Sequence[int], payload: Payload) -> Iterator[Reply | Absence]:
        """Train the participants; replies come in any order."""

    def evaluate(self, clients: Sequence[int], payload: Payload) -> list[Evaluation]:
        """Evaluate clients on their own test sets, ordered as asked, without those that cannot be reached."""

    def save(self, directory: Path) -> None:
        """Write the state of every client that has changed since it was built into the directory."""

    def restore(self, directory: Path | None) -> None:
        """Bring every client to the state in the directory (None, or no file: as freshly built)."""

    def revive(self) -> None:
        """Replace lost workers; `restore` must follow."""

    def close(self) -> None:
        """Let go of processes and memory."""


@runtime_checkable
class Selective(Protocol):
    """An engine that decides itself what becomes of a round with too few usable replies: it must know which are."""

    check: Callable[[Reply], None]  # set by the federation; a PayloadError says why a reply cannot be used


def open_engine(setup: Setup) -> Engine:
    """The engine that the experiment asks for, with all its clients."""
    from fedl2g.engines.inline import InlineEngine
    from fedl2g.engines.workers import WorkersEngine

    if setup.experiment.execution.engine == "workers":
        return WorkersEngine(setup)
    if setup.experiment.execution.engine == "flower":
        from fedl2g.engines.flower import require_flower

        require_flower()
        from fedl2g.engines.flower.simulation import open_simulation

        return open_simulation(setup)
    return InlineEngine(setup)
