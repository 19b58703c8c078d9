"""Methods as short runs take them."""

from __future__ import annotations

from typing import Any

from fedl2g.methods.registry import method_names

BUILT_IN = method_names()[:12]  # those that tests register come last
_SHORT = {"fedtgp": {"server_epochs": 2}, "fedgen": {"server_epochs": 2}}  # 100 would be most of a tiny run's time


def without_warmup(method: str) -> dict[str, Any]:
    """The method with its default options, but FedL2G trains in its first round, not in its fifty-first."""
    return with_warmup(method, 0)


def with_warmup(method: str, rounds: int) -> dict[str, Any]:
    """The method with its default options, but with this warm-up if it has one, and few epochs on the server."""
    warmup = {"warmup_rounds": rounds} if method.startswith("fedl2g") else {}
    return {"name": method, **warmup, **_SHORT.get(method, {})}
