"""The settings of the policies of a round and of the stages of an upload (no torch here)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from fedl2g.errors import SettingError
from fedl2g.registry import rules


class Noise(BaseModel):
    """The paper's noise on uploads: v <- (1 - coefficient) * v + e, e ~ N(0, std^2). It gives NO privacy guarantee."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    std: float = Field(
        0.0,
        ge=0,
        description="s of the paper's noise on uploads; 0 adds none. It gives no differential-privacy guarantee.",
    )
    coefficient: float = Field(
        0.0, ge=0, le=1, description="p of the paper's noise: the upload is scaled by 1 - p before the noise is added."
    )
    scale: Literal["absolute", "relative"] = Field(
        "absolute",
        description="absolute: noise of standard deviation s, as in the code of FedPCL, which the paper follows; "
        "relative: s times the RMS of the client's upload.",
    )

    @property
    def on(self) -> bool:
        """Whether uploads are changed."""
        return self.std > 0 or self.coefficient > 0


class Privacy(BaseModel):
    """Client-level differential privacy for uploads, and dense uploads; docs/security.md states the guarantee."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    clip: float | None = Field(
        None, gt=0, description="The largest norm of a client's whole upload; setting it turns the guarantee on."
    )
    noise_multiplier: float | None = Field(
        None, gt=0, description="Standard deviation of the Gaussian noise, in units of `clip`; or give `epsilon`."
    )
    epsilon: float | None = Field(
        None, gt=0, description="The epsilon spent after all rounds; the noise is solved for it."
    )
    max_epsilon: float | None = Field(
        None, gt=0, description="Stop before the round in which the spent epsilon would exceed this."
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="The delta of the guarantee: well below 1 / number of clients.")
    noise: Literal["server", "client"] = Field(
        "server",
        description="server: noise on the sum, a guarantee against everyone but the server; client: noise on each "
        "upload, a guarantee against the server too, at a much higher cost in accuracy.",
    )
    denominator: Literal["fixed", "counted"] = Field(
        "fixed",
        description="Class vectors: fixed divides their noisy sum by the expected number of participants; counted by "
        "a noisy count of the clients that have the class, which is part of the clipped upload (prototypes, logits).",
    )
    count_weight: float = Field(
        1.0, gt=0, description="counted: weight of the count's entries in the norm of the upload."
    )
    dense_uploads: bool = Field(
        False, description="Send a row for every class, zeros where there is none; always on under the guarantee."
    )

    @model_validator(mode="after")
    def _complete(self) -> Privacy:
        if self.clip is None:
            given = [n for n in ("noise_multiplier", "epsilon", "max_epsilon") if getattr(self, n) is not None]
            if given:
                raise SettingError(
                    f"privacy.{given[0]}: has no effect without privacy.clip; set privacy.clip, the bound of an upload"
                )
        elif (self.noise_multiplier is None) == (self.epsilon is None):
            found, verb = ("neither", "is") if self.epsilon is None else ("both", "are")
            raise SettingError(
                f"privacy.clip: {found} of privacy.epsilon and privacy.noise_multiplier {verb} given; expected one of "
                "them; give the epsilon to have the noise solved for it, or the noise itself"
            )
        return self

    @property
    def on(self) -> bool:
        """Whether uploads are protected by a guarantee."""
        return self.clip is not None


class Aggregation(BaseModel):
    """How the server combines the vectors or networks that the clients sent."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    rule: Annotated[str, AfterValidator(rules.check), rules] = Field(
        "mean",
        description="mean; median: coordinate by coordinate; trimmed_mean: without the largest and smallest values of "
        "each coordinate; norm_clip: the mean after clipping the norms of the vectors (or updates of networks).",
    )
    trim: float = Field(
        0.2, ge=0, lt=0.5, description="trimmed_mean: share of the clients' values cut off at either end."
    )
    clip: float | None = Field(
        None,
        gt=0,
        description="norm_clip: the largest norm allowed; the lower median of the round's norms when absent.",
    )


class Attack(BaseModel):
    """Simulated hostile clients; they depend on the seed alone, and a larger share includes those of a smaller one."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    share: float = Field(0.0, ge=0, le=1, description="Share of the clients that are hostile (rounded); 0: no attack.")
    kind: Literal["sign_flip", "noise", "random_labels", "constant"] = Field(
        "sign_flip",
        description="sign_flip: uploads class vectors, or the change of a network, times -strength; noise: adds noise "
        "of strength times the upload's RMS; constant: uploads strength everywhere; random_labels: trains on labels of "
        "which the share strength is random.",
    )
    strength: float = Field(
        1.0, gt=0, le=1e30, description="How strong the attack is; what it scales depends on the kind."
    )

    @model_validator(mode="after")
    def _labels_are_a_share(self) -> Attack:
        if self.kind == "random_labels" and self.strength > 1:
            raise SettingError(
                f"attack.strength: {self.strength} is not allowed; expected a share of the labels, at most 1, for "
                "random_labels"
            )
        return self


class Availability(BaseModel):
    """Simulated unstable clients. Every choice depends on the seed alone, so the same clients fail on each engine."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    dropout_before: float = Field(
        0.0, ge=0, le=1, description="Chance in each round that a client fails before training: its model is unchanged."
    )
    dropout_after: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Chance in each round that an upload is lost after training: its model has changed.",
    )
    unstable_share: float = Field(1.0, ge=0, le=1, description="Share of the clients that these two chances apply to.")
    speed_spread: float = Field(
        0.0,
        ge=0,
        le=10,
        description="Spread of the clients' speeds: standard deviation of the logarithm of their time.",
    )
    speed_jitter: float = Field(0.0, ge=0, le=10, description="The same spread for one client from round to round.")
    deadline: float | None = Field(
        None, gt=0, description="A round's length, in units of the typical client's time; none when absent."
    )
    late: Literal["drop", "use"] = Field(
        "drop",
        description="Replies after the deadline: dropped, or used when they arrive; the model changes either way.",
    )
    staleness_power: float = Field(
        0.5, ge=0, le=100, description="A reply that comes d rounds late weighs (1 + d) ^ -staleness_power."
    )
    maximum_delay: int = Field(10, ge=1, description="A reply that comes more rounds late than this is dropped.")
    leave: float = Field(0.0, ge=0, le=1, description="Chance in each round that a client leaves for many rounds.")
    absence_rounds: int = Field(
        20, ge=1, description="How many rounds it stays away; it returns with the model it left with."
    )
    join_share: float = Field(0.0, ge=0, le=1, description="Share of the clients that join later than round 1.")
    join_until: int = Field(10, ge=2, description="They join in a round drawn from 2 to this one.")

    @model_validator(mode="after")
    def _slow_needs_a_deadline(self) -> Availability:
        if self.deadline is None and (self.speed_spread or self.speed_jitter):
            raise SettingError(
                "availability.deadline: missing, but speed_spread or speed_jitter is set; speeds matter only with a "
                "deadline, for example availability.deadline=1.5"
            )
        return self


class Replies(BaseModel):
    """Which replies count on Flower's nodes, where replies can be late, too large or missing."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    deadline_seconds: float | None = Field(
        None, gt=0, description="flower: how long a round waits for its clients; no timeout when absent."
    )
    minimum: int = Field(1, ge=1, description="flower: replies a round needs once the deadline has passed.")
    below_minimum: Literal["wait", "skip", "stop"] = Field(
        "wait",
        description="flower: with fewer replies at the deadline, wait for more, skip the round, or stop the run.",
    )
    maximum_mb: float = Field(1024.0, gt=0, description="flower: a larger reply is refused.")
