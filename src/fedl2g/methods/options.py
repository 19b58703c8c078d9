"""The base class of every method's options (no torch here: settings are checked before anything heavy is imported)."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator

from fedl2g.errors import SettingError, choices
from fedl2g.models.catalog import ARCHITECTURES, is_architecture, is_hub
from fedl2g.references import is_reference


class Options(BaseModel):
    """The settings of one method, identified by `name`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(description="The method's name; `fedl2g methods` lists them.")


class AuxiliaryOptions(Options):
    """The settings of a method that exchanges a small auxiliary network."""

    auxiliary: str | None = Field(
        None,
        description="The architecture of the auxiliary network; absent: the one of `models` with the fewest parameters "
        "at the size of the images.",
    )

    @field_validator("auxiliary")
    @classmethod
    def _one_architecture(cls, value: str | None) -> str | None:
        if value is not None and not is_architecture(value) and not is_hub(value) and not is_reference(value):
            raise SettingError(
                f"method.auxiliary: {value!r} is not an architecture; {choices(value, ARCHITECTURES)}, or your own "
                "package.module:function"
            )
        return value
