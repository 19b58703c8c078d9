"""Why simulated clients are not there: the reasons that records hold and pictures of them know (no torch here)."""

from __future__ import annotations

NOT_JOINED = "has not joined yet"
AWAY = "is away"
BUSY = "is still busy with an earlier round"
DROPPED = "dropped out before training"
LOST = "its upload was lost after training"
LATE = "is late"
