"""The coordinator's file: an experiment, and what all sites must agree on (classes, image shape, who takes part)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fedl2g.errors import SettingError
from fedl2g.experiment.identity import SITES

if TYPE_CHECKING:
    from fedl2g.experiment import Experiment
    from fedl2g.setup import Setup


class FederationTable(BaseModel):
    """The table [federation] of the coordinator's file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    classes: tuple[str, ...] = Field(min_length=2)
    image_shape: tuple[int, int, int]
    sites: tuple[str, ...] = Field(min_length=1)

    @field_validator("classes", "sites")
    @classmethod
    def _distinct(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) != len(names):
            raise ValueError("names must differ from each other")
        return names

    @field_validator("image_shape")
    @classmethod
    def _positive(cls, shape: tuple[int, int, int]) -> tuple[int, int, int]:
        if min(shape) < 1 or shape[0] > 4:
            raise ValueError("expected [channels, height, width]")
        return shape


@dataclass(frozen=True)
class Coordinator:
    """A federation as its coordinator describes it."""

    experiment: Experiment
    federation: FederationTable

    @property
    def setup(self) -> Setup:
        """What the server knows of the clients: no data, only what everybody agrees on."""
        import numpy as np

        from fedl2g.data import Dataset, Partition
        from fedl2g.setup import Setup

        table = self.federation
        dataset = Dataset(
            name=SITES,
            images=np.empty((0, *table.image_shape), dtype=np.uint8),
            labels=np.empty(0, dtype=np.int64),
            class_names=table.classes,
            domains=None,
            domain_names=(),
            fingerprint=SITES,
        )
        nothing = tuple(np.empty(0, dtype=np.int64) for _ in table.sites)
        return Setup(self.experiment, dataset, Partition(nothing, nothing))


def read_coordinator(path: Path) -> Coordinator:
    """Read the coordinator's file."""
    from fedl2g.experiment import Experiment
    from fedl2g.references import references_in

    settings = read_toml(path)
    if code := references_in({name: value for name, value in settings.items() if name != "federation"}):
        raise SettingError(
            f"{path}: names code to import ({', '.join(code)}), which the sites would refuse; each site names its own "
            "in its site file"
        )
    try:
        table = FederationTable(**settings.pop("federation", {}))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, ("federation", *first["loc"])))
        raise SettingError(f"{path}: {where}: {first['msg'].removeprefix('Value error, ')}") from error
    for fixed in ("dataset", "partition", "clients", "samples", "image_size"):
        if fixed in settings:
            raise SettingError(f"{path}: {fixed!r} has no place here: each site brings its own data")
    # A site keeps its last two rounds: the server must never fall back further than that.
    execution = {**settings.pop("execution", {}), "engine": "flower", "checkpoint_every": 1}
    given = {"models": "small_cnn", **settings, "dataset": SITES, "partition": "iid", "clients": len(table.sites)}
    experiment = Experiment(**given, execution=execution)
    if experiment.layout == "auto":
        raise SettingError(
            f"{path}: layout: auto is measured on one machine, but the clients of a deployment compute on their own; "
            "choose preset, contiguous, channels_last, or a list such as cnn4=channels_last,resnet18=contiguous"
        )
    return Coordinator(experiment, table)


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a table, or a SettingError of one sentence."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise SettingError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} is not valid TOML: {error}") from error
