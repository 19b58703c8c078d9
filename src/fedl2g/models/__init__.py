"""The clients' networks, each split into an extractor and a head at one common feature width."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedl2g.models.build import build_model
    from fedl2g.models.split import SplitModel, split_model

__all__ = ["SplitModel", "build_model", "split_model"]


def __getattr__(name: str) -> Any:
    # Imported on first use: `fedl2g.models.catalog` must be importable without loading torch, which takes seconds.
    if name == "build_model":
        from fedl2g.models.build import build_model

        return build_model
    if name in ("SplitModel", "split_model"):
        from fedl2g.models import split

        return getattr(split, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
