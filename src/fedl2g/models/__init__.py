"""The networks clients train, each split into a feature extractor and a head of one common width."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedl2g.models.build import build_model
    from fedl2g.models.split import SplitModel, split_model

__all__ = ["SplitModel", "build_model", "split_model"]


def __getattr__(name: str) -> Any:
    # Imported on first use, because `fedl2g.models.catalog` must stay readable without the seconds torch takes to load.
    if name == "build_model":
        from fedl2g.models.build import build_model

        return build_model
    if name in ("SplitModel", "split_model"):
        from fedl2g.models import split

        return getattr(split, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
