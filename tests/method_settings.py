"""Methods as short runs take them."""

from __future__ import annotations

from typing import Any


def without_warmup(method: str) -> dict[str, Any]:
    """The method with its default options, but FedL2G trains in its first round, not in its fifty-first."""
    return {"name": method, "warmup_rounds": 0} if method.startswith("fedl2g") else {"name": method}
