"""The terms of an exchange with nodes: how often to look, when to ask again, how many replies are enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from fedl2g.experiment import Experiment

BELOW_MINIMUM = "replies.below_minimum"  # what the setting is called in messages
_MB = 2**20


class Clock(Protocol):
    """What an exchange needs of time; the module `time` has it."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...


def _always_reachable() -> None:
    """The check of a grid that retries by itself."""


@dataclass(frozen=True)
class Terms:
    """What a deployment and a simulation do differently. The defaults are those of a deployment."""

    poll_seconds: float
    """Between two looks at the grid."""
    first_pause: float
    """Seconds before a failed request is sent again; doubled with each failure of the client."""
    longest_pause: float = 30.0
    attempts: int | None = None
    """How often a client may fail in a row before that ends the run; None: it is asked until the deadline."""
    refusal_ends_run: bool = False
    """Whether a node that refuses a request ends the run with its error; if not, its client is absent."""
    retries: bool = True
    """Whether clients are asked again when all have answered and too few replies can be used; if not, the run ends."""
    ensure_reachable: Callable[[], None] = _always_reachable
    """Raises where no node can ever answer."""

    def pause(self, failures: int) -> float:
        """Seconds to wait after so many failures."""
        return min(self.longest_pause, self.first_pause * 2.0 ** min(failures - 1, 16))


@dataclass(frozen=True)
class Limits:
    """What the experiment says of replies: how long they are waited for, how many are needed, how large they may be."""

    deadline_seconds: float | None = None
    minimum: int = 0
    below_minimum: Literal["wait", "skip", "stop"] = "wait"
    maximum_bytes: int = 1024 * _MB

    @classmethod
    def of(cls, experiment: Experiment) -> Limits:
        """The limits that an experiment sets."""
        r = experiment.replies
        return cls(r.deadline_seconds, r.minimum, r.below_minimum, int(r.maximum_mb * _MB))
