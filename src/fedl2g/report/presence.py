"""Who took part in which round, and why the others did not."""

from __future__ import annotations

from collections.abc import Sequence

from fedl2g.round.absence import AWAY, BUSY, DROPPED, LOST, NOT_JOINED
from fedl2g.round.record import RoundRecord

# Legend entry, colour (readable on light and dark pages), and the recorded reasons that it covers.
KINDS = (
    ("replied", "#2b9348", ()),
    ("late reply used", "#5bb3d9", ()),
    ("not asked", "#76808d33", ()),
    ("not joined yet", "#76808d77", (NOT_JOINED,)),
    ("away", "#76808d", (AWAY,)),
    ("dropped out before training", "#e07a5f", (DROPPED,)),
    ("upload lost after training", "#b5179e", (LOST,)),
    ("late or still busy", "#f2c14e", (BUSY,)),
    ("refused", "#8b1e3f", ()),
)
_NUMBER = {name: number for number, (name, _, _) in enumerate(KINDS)}
_REASON = {reason: number for number, (_, _, reasons) in enumerate(KINDS) for reason in reasons}


def presence(history: Sequence[RoundRecord], clients: int) -> list[list[int]]:
    """For each client, the legend index of every round from 1 on."""
    rounds = [record for record in history if record.round > 0]
    return [[_kind(record, client) for record in rounds] for client in range(clients)]


def _kind(record: RoundRecord, client: int) -> int:
    if client in record.refused:
        return _NUMBER["refused"]
    if client in record.late:
        return _NUMBER["late reply used"]
    reason = record.away.get(client)
    if reason is None and client in record.missing:
        return _NUMBER["dropped out before training"]  # reported by an engine: the client was unreachable
    if reason is not None:
        return _REASON.get(reason, _NUMBER["late or still busy"])
    return _NUMBER["replied"] if client in record.participants else _NUMBER["not asked"]
