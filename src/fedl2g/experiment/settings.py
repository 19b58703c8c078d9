"""The settings of a run: one frozen, validated model. Equal experiments give equal numbers."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, cast

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from fedl2g.data.partition import parse_partition
from fedl2g.errors import SettingError, nearest
from fedl2g.experiment.policies import SITES, Aggregation, Attack, Availability, Noise, Privacy
from fedl2g.methods.options import Options
from fedl2g.methods.registry import get_method
from fedl2g.models.catalog import CHANNELS_LAST, has_equal_heads, resolve_models

LAYOUTS = ("contiguous", "channels_last")
CHOSEN_LAYOUTS = ("preset", "auto")  # by the table of the catalog, by measurement
_DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?(,cuda:\d+)*")


class Execution(BaseModel):
    """How a run is carried out; none of it changes the numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: Literal["inline", "workers", "flower"] = Field(
        "inline", description="Where clients live: in this process, in worker processes, or on Flower's nodes."
    )
    workers: int = Field(2, ge=1, le=1024, description="Worker processes of the `workers` engine, one thread each.")
    memory_mb: int | None = Field(
        None,
        ge=1,
        description="Memory for the clients' networks; the least recently used beyond it wait on disk. Half of what is "
        "free when absent.",
    )
    profile: bool = Field(False, description="Measure where the time of each round goes.")
    checkpoint_every: int = Field(10, ge=1, description="Rounds between checkpoints: what a crash can cost at most.")
    deadline_seconds: float | None = Field(
        None, gt=0, description="flower: how long a round waits for its clients; for ever when absent."
    )
    minimum_replies: int = Field(1, ge=1, description="flower: replies a round needs once the deadline has passed.")
    below_minimum: Literal["wait", "skip", "stop"] = Field(
        "wait",
        description="flower: with fewer replies at the deadline, wait for more, skip the round, or stop the run.",
    )
    maximum_reply_mb: float = Field(1024.0, gt=0, description="flower: a larger reply is refused.")
    link_seconds: float = Field(
        120.0, gt=0, description="flower, deployed: how long the server tries to reach a SuperLink that is gone."
    )


class Experiment(BaseModel):
    """Everything that determines a run."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    method: SerializeAsAny[Options] = Field(
        default_factory=lambda: _method_options("fedl2g-f"),
        description="The method and its options: a name, or a table with `name` and the method's own settings.",
    )
    dataset: str = Field(
        "digits", min_length=1, description="A dataset's name, or the path of an .npz file or a folder of images."
    )
    samples: int | None = Field(
        None, ge=2, description="Use only this many images (a fixed, class-balanced choice); all when absent."
    )
    image_size: int | None = Field(
        None, ge=8, le=1024, description="Resize images read from a folder to this many pixels; 64 when absent."
    )
    partition: str = Field(
        "dirichlet:0.1",
        description="How samples go to clients: iid, dirichlet:BETA, pathological:CLASSES, domain, or file:PATH.",
    )
    test_fraction: float = Field(0.25, gt=0, lt=1, description="Share of each client's samples kept for testing.")
    models: str = Field(
        "small", description="A model group, or architectures separated by commas; client i gets number i mod count."
    )
    clients: int = Field(20, ge=1, le=1_000_000, description="Number of clients.")
    participation: float = Field(1.0, gt=0, le=1, description="Share of the clients that train in each round.")
    rounds: int = Field(1000, ge=1, description="Rounds at most; `patience` usually ends a run earlier.")
    local_epochs: int = Field(1, ge=1, description="Epochs over a client's own data in each round.")
    batch_size: int = Field(10, ge=1, description="Samples in a training batch.")
    client_lr: float = Field(0.01, gt=0, description="The clients' learning rate (plain SGD).")
    reshuffle: bool = Field(True, description="Draw a new order of the samples for each epoch.")
    seed: int = Field(0, ge=0, lt=2**32, description="Determines every random choice of the run.")
    patience: int = Field(
        100, ge=0, description="Stop when this many evaluations passed since the best one; 0 runs all rounds."
    )
    evaluate_every: int = Field(1, ge=1, description="Rounds between evaluations.")
    evaluate_clients: int | float | None = Field(
        None,
        gt=0,
        description="Evaluate only a sample of the clients, drawn anew each time: a whole number of them, or a share "
        "below 1; all when absent.",
    )
    precision: Literal["float32", "float64"] = Field("float32", description="Number format of models and payloads.")
    layout: str = Field(
        "preset",
        description="Memory layout of images and weights, which changes speed and last digits: contiguous, "
        "channels_last, preset: the faster one for each architecture of this package by a fixed table (contiguous for "
        "your own), or auto: the faster one, measured on this machine when the run starts and kept with the run as a "
        "list such as cnn4=channels_last,resnet18=contiguous.",
    )
    device: str = Field("cpu", description="auto, cpu, mps, cuda, or a list such as cuda:0,cuda:1.")
    noise: Noise = Field(
        default_factory=Noise, description="The paper's noise on uploads (no privacy guarantee); off by default."
    )
    aggregation: Aggregation = Field(
        default_factory=Aggregation,
        description="How the server combines replies: mean, median, trimmed_mean, norm_clip, or a table with `rule`.",
    )
    attack: Attack = Field(default_factory=Attack, description="Simulated hostile clients; none by default.")
    availability: Availability = Field(
        default_factory=Availability, description="Simulated unstable, slow, absent and late clients; none by default."
    )
    privacy: Privacy = Field(
        default_factory=Privacy, description="Differential privacy of uploads with a stated guarantee; off by default."
    )
    execution: Execution = Field(default_factory=Execution, description="How the run is carried out.")

    def __init__(self, **settings: Any) -> None:
        """Validate settings; a wrong one is a SettingError of one sentence."""
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise SettingError(_one_sentence(error, type(self))) from error

    @field_validator("method", mode="before")
    @classmethod
    def _resolve_method(cls, value: object) -> Options:
        return value if isinstance(value, Options) else _method_options(value)

    @field_validator("aggregation", mode="before")
    @classmethod
    def _name_the_rule(cls, value: object) -> object:
        return {"rule": value} if isinstance(value, str) else value

    @field_validator("models", mode="before")
    @classmethod
    def _join_models(cls, value: object) -> object:
        return ",".join(value) if isinstance(value, list | tuple) and all(isinstance(v, str) for v in value) else value

    @field_validator("evaluate_clients")
    @classmethod
    def _number_or_share(cls, value: int | float | None) -> int | float | None:
        if isinstance(value, float) and value > 1:
            raise SettingError(f"evaluate_clients: {value} is neither a whole number of clients nor a share up to 1")
        return value

    @field_validator("models", "partition", "device")
    @classmethod
    def _known_spelling(cls, value: str, info: ValidationInfo) -> str:
        if info.field_name == "models":
            resolve_models(value)
        elif info.field_name == "partition":
            parse_partition(value)
        elif not _DEVICE.fullmatch(value):
            raise SettingError(
                f"device: {value!r} is not known; use auto, cpu, mps, cuda, or a list like cuda:0,cuda:1"
            )
        return value

    @model_validator(mode="after")
    def _layouts_are_used(self) -> Experiment:
        if self.layout in (*LAYOUTS, *CHOSEN_LAYOUTS):
            return self
        names = set()
        for part in self.layout.split(","):
            name, equals, layout = part.rpartition("=")
            if layout not in LAYOUTS:
                known = LAYOUTS if equals else (*LAYOUTS, *CHOSEN_LAYOUTS)
                raise SettingError(
                    f"layout: {layout!r} is not known.{nearest(layout, known)} Use preset, auto, contiguous, "
                    "channels_last, or a list such as cnn4=channels_last,resnet18=contiguous"
                )
            if not name or name in names:
                wrong = f"names {name!r} twice" if name else f"does not say which architecture is {layout}"
                raise SettingError(
                    f"layout: the list {self.layout!r} {wrong}; expected each architecture once, such as "
                    "cnn4=channels_last,resnet18=contiguous"
                )
            if name not in self.architectures and self.dataset != SITES:  # in a deployment each site names its own
                raise SettingError(
                    f"layout: no client has the architecture {name!r}.{nearest(name, self.architectures)} Expected "
                    f"some of {', '.join(dict.fromkeys(self.architectures))}"
                )
            names.add(name)
        return self

    @model_validator(mode="after")
    def _heads_can_be_shared(self) -> Experiment:
        if get_method(self.method.name).shares_head and not has_equal_heads(self.architectures):
            raise SettingError(
                f"models: {self.models!r} mixes different heads, but {self.method.name} shares one head among all "
                "clients; choose a group with equal heads (such as htfe8) or another method"
            )
        return self

    @model_validator(mode="after")
    def _guarantee_holds(self) -> Experiment:
        if not self.privacy.on:
            return self
        if get_method(self.method.name).server.uploads == "other":
            raise SettingError(
                f"privacy.clip: the uploads of {self.method.name} cannot be bounded by clipping, so there can be no "
                "guarantee; choose another method, or none of privacy.clip, epsilon and noise_multiplier"
            )
        if self.aggregation.rule != "mean":
            raise SettingError(
                f"aggregation.rule: {self.aggregation.rule} is not covered by the privacy guarantee, which is about "
                "sums; use mean"
            )
        if self.availability.deadline is not None and self.availability.late == "use":
            raise SettingError(
                "availability.late: replies used in a later round are not covered by the privacy guarantee; use drop"
            )
        return self

    @property
    def architectures(self) -> tuple[str, ...]:
        """The architectures that the clients get in turn."""
        return resolve_models(self.models)

    @property
    def channels_last(self) -> frozenset[str]:
        """The architectures that compute in this memory layout; none before `auto` has been settled."""
        if self.layout == "channels_last":
            return frozenset(self.architectures)
        if self.layout == "preset":  # in a deployment each site names its own architecture
            return CHANNELS_LAST if self.dataset == SITES else CHANNELS_LAST.intersection(self.architectures)
        pairs = (part.rpartition("=") for part in self.layout.split(","))
        return frozenset(name for name, _, layout in pairs if layout == "channels_last")

    def settled(self, layout: str) -> Experiment:
        """The experiment with these layouts in place of `auto`."""
        return Experiment(**{**dict(self), "layout": layout}) if self.layout == "auto" else self

    @property
    def evaluated_per_round(self) -> int:
        """How many clients each evaluation looks at."""
        wanted = self.evaluate_clients
        if wanted is None:
            return self.clients
        return min(self.clients, wanted if isinstance(wanted, int) else max(1, int(self.clients * wanted + 1e-9)))

    @property
    def participants_per_round(self) -> int:
        """max(1, int(N * rho)), safe against 0.29 * 100 = 28.999..."""
        return max(1, int(self.clients * self.participation + 1e-9))

    @property
    def fingerprint(self) -> str:
        """A name for exactly these numbers: equal for experiments that give equal results."""
        settings = self.model_dump(mode="json", exclude={"execution", *self._untouched()})
        if self.layout != "auto":  # what it stands for, so that another table is another experiment
            settings["layout"] = sorted(self.channels_last)
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    def to_toml(self) -> str:
        """The experiment as a TOML document that `from_toml` reads back to an equal experiment."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True, exclude=self._untouched()))

    def _untouched(self) -> set[str]:
        """Later settings that have their defaults here: left out, so that earlier experiments keep their names."""
        later = {name: field for name, field in type(self).model_fields.items() if name not in _FIRST}
        return {n for n, field in later.items() if getattr(self, n) == field.get_default(call_default_factory=True)}

    @classmethod
    def from_toml(
        cls, text: str, overrides: Mapping[str, Any] | None = None, *, source: str = "the file"
    ) -> Experiment:
        """Read an experiment from TOML text, with settings (dotted names allowed) laid over it."""
        try:
            settings = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # of many kinds: a number of thousands of digits, deep nesting
            raise SettingError(f"{source} is not valid TOML: {error}") from error
        return cls(**overlay(settings, overrides or {}))

    @classmethod
    def from_file(cls, path: Path, overrides: Mapping[str, Any] | None = None) -> Experiment:
        """Read an experiment file."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise SettingError(f"cannot read the experiment file {path}: {reason}") from error
        return cls.from_toml(text, overrides, source=str(path))


# The settings that experiments had from the beginning on: always part of an experiment's file and fingerprint.
_FIRST = frozenset(
    (
        *("method", "dataset", "samples", "image_size", "partition", "test_fraction", "models", "clients"),
        *("participation", "rounds", "local_epochs", "batch_size", "client_lr", "reshuffle", "seed"),
        *("patience", "evaluate_every", "precision", "layout", "device", "execution"),
    )
)
_SHORT = {"method": "name", "aggregation": "rule"}  # tables that may be given as one word, and what it says
_OPTIONAL_TABLES: dict[str, type[BaseModel]] = {
    "noise": Noise,
    "aggregation": Aggregation,
    "attack": Attack,
    "availability": Availability,
    "privacy": Privacy,
}


def overlay(settings: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with overrides laid over them; "method.server_lr" reaches into the table `method`."""
    result = {key: dict(value) if isinstance(value, Mapping) else value for key, value in settings.items()}
    for dotted, value in overrides.items():
        table, _, key = dotted.partition(".")
        if not key:
            keeps_options = table == "method" and isinstance(value, str) and _method_name(result) == value
            if not keeps_options:
                result[table] = value
            continue
        inner = result.get(table, {})
        if table in _SHORT and isinstance(inner, str):
            inner = {_SHORT[table]: inner}
        if not isinstance(inner, dict):
            raise SettingError(f"{dotted}: {table!r} is a single value, it has no setting {key!r}")
        result[table] = {**inner, key: value}
    return result


def _method_name(settings: Mapping[str, Any]) -> object:
    method = settings.get("method")
    return method.get("name") if isinstance(method, dict) else method


def parse_override(text: str) -> tuple[str, Any]:
    """Split "key=value"; the value is read as TOML where it is TOML, else it is a string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise SettingError(f"--set {text!r} is not of the form key=value, for example --set method.server_lr=1")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        return key.strip(), value.strip()


def _method_options(value: object) -> Options:
    table = {"name": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping):
        raise SettingError(f"method: expected a name or a table of settings, not {value!r}")
    name = table.get("name", "fedl2g-f")
    if not isinstance(name, str):
        raise SettingError(f"method.name: expected a name, not {name!r}")
    options = get_method(name).options
    try:
        return options.model_validate({**table, "name": name})
    except ValidationError as error:
        raise SettingError(_one_sentence(error, options, prefix="method.")) from error


def explain(name: str) -> str:
    """What a setting means, its default and what it may be: `rounds`, `execution.engine`, `method.server_lr`, ..."""
    documented = dict(documented_fields())
    if name not in documented:
        raise SettingError(f"{name!r} is not a setting.{nearest(name, documented)} `fedl2g explain` lists all settings")
    return documented[name]


def documented_fields() -> Iterable[tuple[str, str]]:
    """Every setting with its explanation."""
    from fedl2g.methods.registry import method_names

    for name, field in Experiment.model_fields.items():
        yield name, _describe(field, "fedl2g-f" if name == "method" else None)
    tables: dict[str, type[BaseModel]] = {**_OPTIONAL_TABLES, "execution": Execution}
    for table, model in tables.items():
        for name, field in model.model_fields.items():
            yield f"{table}.{name}", _describe(field)
    seen: dict[str, str] = {}
    for method in method_names():
        for name, field in get_method(method).options.model_fields.items():
            if name != "name":
                line = f"{method}: {_describe(field)}"
                seen[name] = f"{seen[name]}\n{line}" if name in seen else line
    for name, text in seen.items():
        yield f"method.{name}", text


def _describe(field: FieldInfo, default: str | None = None) -> str:
    allowed = [str(m) for m in field.metadata if not type(m).__name__.startswith("_")]
    kind = getattr(field.annotation, "__name__", str(field.annotation)).replace("typing.", "")
    if "Literal" in str(field.annotation) or "|" in str(field.annotation):
        kind = str(field.annotation).replace("typing.", "")
    shown = default or ("" if field.default_factory else repr(field.default))
    limits = f", {', '.join(allowed)}" if allowed else ""
    return f"{field.description} ({kind}{limits}" + (f"; default {shown})" if shown else ")")


def _one_sentence(error: ValidationError, model: type[BaseModel], prefix: str = "") -> str:
    first = error.errors()[0]
    where = prefix + ".".join(str(part) for part in first["loc"] if part != "function-after")
    if first["type"] == "extra_forbidden":
        owner: type[BaseModel] = model
        for part in first["loc"][:-1]:
            annotation = owner.model_fields[str(part)].annotation
            owner = cast(type[BaseModel], annotation)
        known = [name for name in owner.model_fields if name != "name"]
        return f"unknown setting {where!r}.{nearest(str(first['loc'][-1]), known)} Known: {', '.join(known)}"
    message = first["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    return f"{where}: {first['input']!r} is not allowed: {message}"
