"""A registered site that answers every request with something that is no answer. A script, started as a site is.

python garbage_site.py SITE_TOML
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedl2g.deploy import site

GARBAGE = (
    RecordDict({"about": ConfigRecord({"client": 1})}),
    RecordDict({"envelope": ConfigRecord({"content": b"\x00\xff" * 1000})}),
    RecordDict({"payload": ArrayRecord({"payload": Array("uint8", (4,), "safetensors", b"\x80\x04\x95.")})}),
)


def garbage(
    self: site.Trainer, kind: str, records: RecordDict, seconds: float, wanted: Callable[[], bool]
) -> RecordDict:
    """Each time something else."""
    asked = getattr(self, "asked", 0)
    self.asked = asked + 1  # type: ignore[attr-defined]
    return GARBAGE[asked % len(GARBAGE)]


if __name__ == "__main__":
    site.Trainer.answer = garbage  # type: ignore[method-assign]
    site.wrap = lambda records: records  # type: ignore[attr-defined]  # which would refuse to send garbage
    site.run_site(Path(sys.argv[1]))
