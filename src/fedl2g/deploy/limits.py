"""What a coordinator may ask a site for: the table [limits] of the site's own file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from fedl2g.errors import SettingError

if TYPE_CHECKING:
    from fedl2g.experiment import Experiment
    from fedl2g.schema import Schema

_MB = 2**20


class Limits(BaseModel):
    """The largest request that a site serves; anything beyond is refused and logged."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=lambda name: name.replace("_", "-")
    )

    methods: list[str] = Field(["fedl2g-f", "fedl2g-l"], min_length=1)
    rounds: int = Field(1000, ge=1)
    epochs: int = Field(10, ge=1)
    """Epochs of training in a round."""
    seconds: float = Field(3600.0, gt=0)
    """Seconds for one request; training that takes longer is ended."""
    megabytes: float = Field(64.0, gt=0)
    """The largest broadcast."""
    image_shape: list[int] = Field([3, 256, 256], min_length=3, max_length=3)
    """The most channels, height and width: images are resized to the federation's shape."""
    tokens: int = Field(1024, ge=1)
    """Of a text: texts are cut or filled to the federation's length."""
    vocabulary: int = Field(2**17, ge=2)
    """Of token ids: a network has a vector for each."""
    runs: int = Field(100, ge=1)
    """The runs whose models this site stores."""

    @property
    def maximum_bytes(self) -> int:
        return int(self.megabytes * _MB)

    def check(self, experiment: Experiment, inputs: Schema, classes: int) -> None:
        """Raise SettingError if an experiment asks for more than this site allows."""
        if experiment.method.name not in self.methods:
            raise _refusal("methods", experiment.method.name, ", ".join(self.methods))
        if experiment.rounds > self.rounds:
            raise _refusal("rounds", experiment.rounds, f"at most {self.rounds}")
        if experiment.local_epochs > self.epochs:
            raise _refusal("epochs", experiment.local_epochs, f"at most {self.epochs}")
        # A vector for each class is what a broadcast can hold, and the size of the head that the site would build.
        if (rows := 4 * classes * experiment.feature_dim) > self.maximum_bytes:
            asked = f"{classes} classes x {experiment.feature_dim} features, {rows / _MB:.3g} MB"
            raise _refusal("megabytes", asked, f"{self.megabytes:g} MB")
        # Images and texts are brought into the form that the coordinator asks for; other data has that of the site.
        if inputs.kind == "image" and any(a > most for a, most in zip(inputs.shape, self.image_shape, strict=True)):
            raise _refusal("image-shape", list(inputs.shape), f"at most {self.image_shape}")
        if inputs.kind == "text" and inputs.shape[0] > self.tokens:
            raise _refusal("tokens", inputs.shape[0], f"at most {self.tokens}")
        if inputs.kind == "text" and inputs.vocabulary > self.vocabulary:
            raise _refusal("vocabulary", inputs.vocabulary, f"at most {self.vocabulary}")

    def check_runs(self, stored: int) -> None:
        """Raise SettingError if a new run would be one too many."""
        if stored >= self.runs:
            raise _refusal("runs", f"run {stored + 1}", f"at most {self.runs}; remove old runs from the store")

    def too_slow(self) -> SettingError:
        """The refusal of a request that took too long."""
        return _refusal("seconds", "more time", f"at most {self.seconds:g} s for a request")


def _refusal(limit: str, asked: object, allowed: str) -> SettingError:
    return SettingError(f"limits.{limit}: the coordinator asks for {asked}; this site allows {allowed}")
