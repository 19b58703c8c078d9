"""The parameters of an exchange with nodes: polling, retries, timeouts and the number of replies needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from fedl2g.experiment import Experiment

BELOW_MINIMUM = "replies.below_minimum"  # the setting's name in messages
_MB = 2**20


class Clock(Protocol):
    """The clock of an exchange; satisfied by the module `time`."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...


@dataclass(frozen=True)
class Terms:
    """How requests are polled and retried, which differs between deployment and simulation; defaults: deployment."""

    poll_seconds: float
    """Seconds between two polls of the grid."""
    first_pause: float
    """Seconds before a failed request is retried; doubled with each failure of the client."""
    longest_pause: float = 30.0
    attempts: int | None = None
    """Consecutive failures of a client that end the run; None: it is retried until the deadline."""
    identity_attempts: int = 10
    """How often a node may fail to say which client it is before it is ignored until its restart."""
    awake: int = 0
    """Messages after every request that keep a quick node awake: a SuperNode that finds none sleeps for 3 s."""
    awake_seconds: float = 10.0
    """A node is quick if its last answer took less than this."""
    awake_nodes: int = 16
    """In larger federations nodes are not kept awake: the messages cost the SuperLink time."""
    refusal_ends_run: bool = False
    """Whether a node's refusal ends the run with its error; if not, its client counts as absent."""
    retries: bool = True
    """Whether clients are retried when all have answered but too few replies are usable; if not, the run ends."""

    def pause(self, failures: int) -> float:
        """Seconds to wait after this many failures (exponential backoff)."""
        return min(self.longest_pause, self.first_pause * 2.0 ** min(failures - 1, 16))


@dataclass(frozen=True)
class Limits:
    """The experiment's limits on replies: the deadline, how many are needed, how large they may be."""

    deadline_seconds: float | None = None
    minimum: int = 0
    below_minimum: Literal["wait", "skip", "stop"] = "wait"
    maximum_bytes: int = 1024 * _MB

    @classmethod
    def of(cls, experiment: Experiment) -> Limits:
        """The limits that an experiment sets."""
        r = experiment.replies
        return cls(r.deadline_seconds, r.minimum, r.below_minimum, int(r.maximum_mb * _MB))
