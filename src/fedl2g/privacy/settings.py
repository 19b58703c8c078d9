"""The settings of privacy (no torch here: settings are checked before anything heavy is loaded)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedl2g.errors import SettingError


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


class Privacy(BaseModel):
    """Client-level differential privacy for uploads, and dense uploads. docs/security.md says what it promises."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    clip: float | None = Field(
        None, gt=0, description="The longest norm of a client's whole upload; setting it turns the guarantee on."
    )
    noise_multiplier: float | None = Field(
        None, gt=0, description="Deviation of the Gaussian noise, in units of `clip`; or give `epsilon`."
    )
    epsilon: float | None = Field(
        None, gt=0, description="The epsilon to have spent after all rounds; the noise is solved for it."
    )
    max_epsilon: float | None = Field(
        None, gt=0, description="Stop before the round in which the spent epsilon would exceed this."
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="The delta of the guarantee: well below 1 / number of clients.")
    noise: Literal["server", "client"] = Field(
        "server",
        description="server: noise on the sum, the guarantee is against all but the server; client: on each upload, "
        "it is against the server too, and costs much more accuracy.",
    )
    denominator: Literal["fixed", "counted"] = Field(
        "fixed",
        description="Class vectors: fixed divides their noisy sum by the expected number of participants; counted by "
        "a noisy count of the clients that have the class, which is part of the clipped upload (prototypes, logits).",
    )
    count_weight: float = Field(1.0, gt=0, description="counted: what 1 in the count weighs in the norm of the upload.")
    dense_uploads: bool = Field(
        False, description="Send a row for every class, zeros where there is none; always so under the guarantee."
    )

    @model_validator(mode="after")
    def _complete(self) -> Privacy:
        if self.clip is None:
            given = [n for n in ("noise_multiplier", "epsilon", "max_epsilon") if getattr(self, n) is not None]
            if given:
                raise SettingError(f"privacy.{given[0]}: has no meaning without privacy.clip, the bound of an upload")
        elif (self.noise_multiplier is None) == (self.epsilon is None):
            raise SettingError(
                "privacy.clip: give either privacy.epsilon (the noise is solved for it) or privacy.noise_multiplier"
            )
        return self

    @property
    def on(self) -> bool:
        """Whether uploads are protected by a guarantee."""
        return self.clip is not None
