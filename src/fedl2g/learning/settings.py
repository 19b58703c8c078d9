"""How clients train: the settings of their optimizer, its schedule and the augmentation of images (no torch here)."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Table(BaseModel):
    """A table of settings; a name alone stands for a table with this name."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class Optimizer(_Table):
    """The clients' optimizer, at the rate `client_lr`. Its running averages are private to a client."""

    name: Literal["sgd", "adamw"] = Field("sgd", description="sgd, or adamw (try a lower client_lr, such as 0.001).")
    momentum: float = Field(0.0, ge=0, lt=1, description="sgd: the share of the last step that is kept.")
    weight_decay: float = Field(
        0.0, ge=0, description="sgd: L2 regularisation, added to the gradient; adamw: decoupled from it."
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="adamw: decay of the mean of the gradients.")
    beta2: float = Field(0.999, ge=0, lt=1, description="adamw: decay of the mean of their squares.")

    @model_validator(mode="after")
    def _only_what_it_has(self) -> Optimizer:
        foreign = {"sgd": ("beta1", "beta2"), "adamw": ("momentum",)}[self.name]
        if given := [name for name in foreign if name in self.model_fields_set and not self._is_default(name)]:
            raise ValueError(f"{self.name} has no {given[0]}; leave it out, or choose the other optimizer")
        return self

    def _is_default(self, name: str) -> bool:
        return bool(dict(self)[name] == type(self).model_fields[name].default)

    @property
    def plain(self) -> bool:
        """Whether it is the paper's: SGD without momentum and weight decay."""
        return self.name == "sgd" and not self.momentum and not self.weight_decay


class Schedule(_Table):
    """How the clients' rate changes over the rounds of a run."""

    name: Literal["constant", "cosine", "step"] = Field(
        "constant",
        description="constant; cosine: from client_lr along half a cosine to `final` of it; step: times `factor` every "
        "`every` rounds.",
    )
    rounds: int | None = Field(
        None, ge=1, description="cosine: the rounds it takes; those of the experiment when absent."
    )
    final: float = Field(0.0, ge=0, le=1, description="cosine: the share of client_lr that is left in the end.")
    every: int = Field(30, ge=1, description="step: the rounds between two changes.")
    factor: float = Field(0.1, gt=0, le=1, description="step: what the rate is multiplied by.")

    def share(self, round: int, rounds: int) -> float:
        """The share of client_lr in a round (from 1) of a run with this many rounds."""
        if self.name == "step":
            return self.factor ** ((round - 1) // self.every)
        if self.name == "cosine":
            progress = min(1.0, (round - 1) / (self.rounds or rounds))
            return self.final + (1 - self.final) * (1 + math.cos(math.pi * progress)) / 2
        return 1.0

    @property
    def uses_rounds(self) -> bool:
        """Whether the rate depends on the experiment's number of rounds."""
        return self.name == "cosine" and self.rounds is None


class Augment(BaseModel):
    """Random changes of the images that clients train on; off by default, as in the paper."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    flip: bool = Field(False, description="Mirror each image, left to right, with a chance of one half.")
    crop: int = Field(
        0,
        ge=0,
        le=1024,
        description="Pad images with this many black pixels on each side, then cut out the original size at random.",
    )

    @property
    def on(self) -> bool:
        """Whether images are changed."""
        return self.flip or self.crop > 0


Amp = Literal["off", "bf16"]
