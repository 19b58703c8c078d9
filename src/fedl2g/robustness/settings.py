"""The settings of robustness (no torch here: settings are checked before anything heavy is loaded)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Aggregation(BaseModel):
    """How the server makes one vector or network out of those that many clients sent."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    rule: Literal["mean", "median", "trimmed_mean", "norm_clip"] = Field(
        "mean",
        description="mean; median: coordinate by coordinate; trimmed_mean: without the largest and smallest values of "
        "each coordinate; norm_clip: the mean after long vectors (or updates of networks) were shortened.",
    )
    trim: float = Field(
        0.2, ge=0, lt=0.5, description="trimmed_mean: share of the clients' values cut off at either end."
    )
    clip: float | None = Field(
        None, gt=0, description="norm_clip: the longest norm allowed; the median of the round's norms when absent."
    )
