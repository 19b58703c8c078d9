"""The settings of privacy (no torch here: settings are checked before anything heavy is loaded)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Noise(BaseModel):
    """The paper's noise on uploads: v <- (1 - coefficient) * v + e, e ~ N(0, std^2). It gives NO privacy guarantee."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    std: float = Field(
        0.0,
        ge=0,
        description="s of the paper's noise on uploads; 0 adds none. It carries no differential-privacy guarantee.",
    )
    coefficient: float = Field(
        0.0, ge=0, le=1, description="p of the paper's noise: the upload is scaled by 1 - p before the noise is added."
    )
    scale: Literal["absolute", "relative"] = Field(
        "absolute", description="absolute: noise of deviation s; relative: of s times the RMS of the client's upload."
    )

    @property
    def on(self) -> bool:
        """Whether an upload is changed at all."""
        return self.std > 0 or self.coefficient > 0
