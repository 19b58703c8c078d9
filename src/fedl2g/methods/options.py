"""The base class of every method's options (no torch here: settings are checked before anything heavy is imported)."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Options(BaseModel):
    """The settings of one method, identified by `name`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(description="The method's name; `fedl2g methods` lists them.")
