"""The coordinator's file: the experiment, and what all sites share (classes, the form of a sample, sites, address)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from fedl2g.errors import SettingError
from fedl2g.experiment.identity import SITES
from fedl2g.experiment.words import one_sentence
from fedl2g.folder import read_given
from fedl2g.models.catalog import GROUP_OF_KIND, GROUPS
from fedl2g.schema import Schema, image_schema

if TYPE_CHECKING:
    from fedl2g.experiment import Experiment
    from fedl2g.setup import Setup


def _schema(table: Any) -> Schema:
    if not isinstance(table, dict):
        raise ValueError("expected a table with kind and shape; `fedl2g data schema` prints that of a dataset")
    return Schema.from_json(table)


class FederationTable(BaseModel):
    """The table [federation] of the coordinator's file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    classes: tuple[str, ...] = Field(min_length=2)
    image_shape: tuple[int, int, int] | None = None
    form: Annotated[Schema, BeforeValidator(_schema)] | None = Field(None, alias="inputs")
    sites: tuple[str, ...] = Field(min_length=1)
    address: str | None = Field(None, pattern=r"^[^:/\s]+:\d+$", description="host:port")
    """Where the sites reach the SuperLink."""

    @field_validator("classes", "sites")
    @classmethod
    def _distinct(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) != len(names):
            raise ValueError("expected each name once")
        return names

    @field_validator("image_shape")
    @classmethod
    def _positive(cls, shape: tuple[int, int, int] | None) -> tuple[int, int, int] | None:
        if shape is not None and (min(shape) < 1 or shape[0] > 4):
            raise ValueError("not an image shape; expected [channels, height, width]")
        return shape

    @model_validator(mode="after")
    def _one_form(self) -> FederationTable:
        if (self.image_shape is None) == (self.form is None):
            raise ValueError("expected either image_shape, or the table [federation.inputs] for other kinds of data")
        return self

    @property
    def inputs(self) -> Schema:
        """The form of the samples at every site."""
        if self.form is not None:
            return self.form
        assert self.image_shape is not None  # checked above
        return image_schema(*self.image_shape)


@dataclass(frozen=True)
class Coordinator:
    """The contents of the coordinator's file."""

    experiment: Experiment
    federation: FederationTable

    @property
    def setup(self) -> Setup:
        """The server's setup: it has the federation's classes and form of samples, but no data."""
        import numpy as np

        from fedl2g.datasets import Dataset, Partition
        from fedl2g.setup import Setup

        table = self.federation
        dataset = Dataset(
            name=SITES,
            schema=table.inputs,
            inputs=np.empty((0, *table.inputs.shape), dtype=np.uint8),
            labels=np.empty(0, dtype=np.int64),
            class_names=table.classes,
            groups=None,
            group_names=(),
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
            f"{path}: names code to import ({', '.join(code)}), which the sites would refuse; name each site's code in "
            "its site file"
        )
    try:
        table = FederationTable(**settings.pop("federation", {}))
    except ValidationError as error:
        raise SettingError(f"{path}: {one_sentence(error, FederationTable, prefix='federation.')}") from error
    for fixed in ("dataset", "partition", "clients", "samples", "image_size", "label", "text", "ignore"):
        if fixed in settings:
            raise SettingError(
                f"{path}: {fixed}: not allowed in a deployment, where each site has its own data; remove it"
            )
    # A site stores its last two rounds only: the server must not resume from an older one.
    execution = {**settings.pop("execution", {}), "engine": "flower", "checkpoint_every": 1}
    server = GROUPS[GROUP_OF_KIND[table.inputs.kind]][0]  # the server's network, if the method has one
    given = {"models": server, **settings, "dataset": SITES, "partition": "iid", "clients": len(table.sites)}
    experiment = Experiment(**given, execution=execution)
    if experiment.layout == "auto":
        raise SettingError(
            f"{path}: layout: auto is measured on one machine, but the clients of a deployment run on several; "
            "choose preset, contiguous, channels_last, or a list such as cnn4=channels_last,resnet18=contiguous"
        )
    return Coordinator(experiment, table)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; SettingError if it is unreadable or malformed."""
    try:
        return tomllib.loads(read_given(path).decode("utf-8"))
    except OSError as error:
        raise SettingError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except (ValueError, RecursionError) as error:  # ValueError: also for a number with thousands of digits
        raise SettingError(f"{path}: is not valid TOML ({error}); correct it") from error
