"""Who is there when: simulated drop-out, slow clients, absences and late joiners, the same on every engine.

Time is simulated: the typical client needs 1, client i in round t needs exp(spread * a_i + jitter * b_it) with a, b
standard normal. A client that needs n deadlines is busy until the round t + n - 1, in which its reply arrives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fedl2g import rng
from fedl2g.experiment.policies import Availability

NOT_JOINED = "has not joined yet"
AWAY = "is away"
BUSY = "is still busy with an earlier round"
DROPPED = "dropped out before training"
LOST = "its upload was lost after training"
LATE = "is late"


@dataclass(frozen=True)
class Fate:
    """What happens to a client that is asked to train in a round."""

    trains: bool
    reason: str = ""  # why its reply does not arrive in this round; "" when it does
    delay: int = 0  # rounds by which the reply is late


class Schedule:
    """Decides each client's fate from the seed; remembers who is busy."""

    def __init__(self, settings: Availability, clients: int, seed: int) -> None:
        self.settings = settings
        self.clients = clients
        self.seed = seed
        self.on = settings != Availability()
        self.busy: dict[int, int] = {}  # client -> the round in which it is done
        self._joins = self._drawn_joins()
        self._unstable = self._share(settings.unstable_share, "unstable") if self.on else frozenset()
        self._absences: dict[int, _Absences] = {}

    def whereabouts(self, round: int) -> dict[int, str]:
        """The clients that cannot be asked in a round, and why."""
        if not self.on:
            return {}
        found = {client: self._where(client, round) for client in range(self.clients)}
        return {client: reason for client, reason in found.items() if reason}

    def _where(self, client: int, round: int) -> str:
        if round < self._joins.get(client, 1):
            return NOT_JOINED
        if self.settings.leave and self._absent(client, round):
            return AWAY
        return BUSY if round <= self.busy.get(client, 0) else ""

    def fate(self, client: int, round: int) -> Fate:
        """What becomes of a client that is there and asked."""
        if not self.on:
            return Fate(trains=True)
        stream = rng.numpy_stream(self.seed, "dropout", client, round)
        before, after = stream.random(2)
        if client in self._unstable and before < self.settings.dropout_before:
            return Fate(trains=False, reason=DROPPED)
        delay = self._delay(client, round)
        if client in self._unstable and after < self.settings.dropout_after:
            return Fate(trains=True, reason=LOST, delay=delay)
        if delay:
            return Fate(trains=True, reason=f"{LATE} by {delay} round{'s' if delay > 1 else ''}", delay=delay)
        return Fate(trains=True)

    def weight(self, delay: int) -> float:
        """What a reply counts that comes so many rounds late."""
        return float((1 + delay) ** -self.settings.staleness_power)

    def uses(self, fate: Fate) -> bool:
        """Whether a late reply is waited for."""
        late = fate.reason.startswith(LATE)
        return late and self.settings.late == "use" and fate.delay <= self.settings.maximum_delay

    def _delay(self, client: int, round: int) -> int:
        if self.settings.deadline is None:
            return 0
        own = rng.numpy_stream(self.seed, "speed", client).standard_normal()
        now = rng.numpy_stream(self.seed, "speed", client, round).standard_normal()
        time = math.exp(self.settings.speed_spread * own + self.settings.speed_jitter * now)
        return max(0, math.ceil(time / self.settings.deadline - 1e-9) - 1)

    def _absent(self, client: int, round: int) -> bool:
        if client not in self._absences:
            self._absences[client] = _Absences(self.seed, client, self.settings.leave, self.settings.absence_rounds)
        return self._absences[client].covers(round)

    def _share(self, share: float, purpose: str) -> frozenset[int]:
        count = int(share * self.clients + 0.5)
        return frozenset(rng.numpy_stream(self.seed, purpose).permutation(self.clients)[:count].tolist())

    def _drawn_joins(self) -> dict[int, int]:
        late = sorted(self._share(self.settings.join_share, "joiners")) if self.settings.join_share else []
        rounds = rng.numpy_stream(self.seed, "join").integers(2, self.settings.join_until + 1, size=len(late))
        return dict(zip(late, rounds.tolist(), strict=True))


@dataclass
class _Absences:
    """The rounds in which one client is away, found as far as they are asked for."""

    seed: int
    client: int
    leave: float
    length: int
    known: int = 0  # rounds decided so far
    until: int = 0  # the last round of the latest absence
    away: set[int] = field(default_factory=set)

    def covers(self, round: int) -> bool:
        while self.known < round:
            self.known += 1
            if self.known <= self.until:
                self.away.add(self.known)
            elif rng.numpy_stream(self.seed, "leave", self.client, self.known).random() < self.leave:
                self.until = self.known + self.length - 1
                self.away.add(self.known)
        return round in self.away
