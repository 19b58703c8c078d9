"""The reasons for which a simulated client does not reply, as records and figures name them (imports no torch)."""

from __future__ import annotations

NOT_JOINED = "has not joined yet"
AWAY = "is away"
BUSY = "is still busy with an earlier round"
DROPPED = "dropped out before training"
LOST = "its upload was lost after training"
LATE = "is late"
