"""The settings of a run: one frozen, validated model. Equal experiments give equal numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fedl2g.errors import SettingError, shown
from fedl2g.experiment import checks, files, identity, layouts
from fedl2g.experiment.policies import Aggregation, Attack, Availability, Noise, Privacy, Replies
from fedl2g.experiment.protocol import Choices, ProtocolName, choices_of, resolved
from fedl2g.experiment.words import one_sentence
from fedl2g.learning.settings import Amp, Augment, Optimizer, Schedule
from fedl2g.methods.options import Options
from fedl2g.methods.registry import DEFAULT_METHOD, get_method
from fedl2g.models.catalog import resolve_models
from fedl2g.references import references_in
from fedl2g.registry import engines, samplers


class Execution(BaseModel):
    """How a run is executed; nothing here changes the numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    engine: Annotated[str, AfterValidator(engines.check), engines] = Field(
        "inline",
        description="Where clients live. inline: in this process; workers: in worker processes; flower: on Flower's "
        "nodes.",
    )
    workers: int = Field(2, ge=1, le=1024, description="Worker processes of the `workers` engine, one thread each.")
    memory_mb: int | None = Field(
        None,
        ge=1,
        description="Memory for the clients' networks; beyond it, the least recently used are evicted to disk. Half of "
        "the free memory when absent.",
    )
    profile: bool = Field(False, description="Measure how the time of each round is spent.")
    checkpoint_every: int = Field(10, ge=1, description="Rounds between checkpoints: the most a crash can lose.")
    keep_best: bool = Field(
        True, description="Keep the models of the best round as well as the last ones; `fedl2g export` writes either."
    )
    link_seconds: float = Field(
        120.0, gt=0, description="flower, deployed: timeout for reaching a SuperLink that is down."
    )


class Experiment(BaseModel):
    """All settings that determine a run."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    method: SerializeAsAny[Options] = Field(
        default_factory=lambda: _method_options(DEFAULT_METHOD),
        description="The method and its options: a name (`fedl2g methods` lists them), or a table with `name` and the "
        f"method's own settings; {DEFAULT_METHOD} when absent.",
    )
    dataset: str = Field(
        "digits",
        min_length=1,
        description="A dataset's name, or the path of an .npz, CSV or parquet file or a folder of images.",
    )
    samples: int | None = Field(
        None, ge=2, description="Use only this many samples (a fixed, class-balanced choice); all when absent."
    )
    image_size: int | None = Field(
        None, ge=8, le=1024, description="Resize images read from a folder to this many pixels; 64 when absent."
    )
    label: str | None = Field(None, description="The column with the labels of a CSV or parquet file.")
    text: str | None = Field(
        None,
        description="The column with the texts of a CSV or parquet file, or several separated by commas, which are "
        "joined. Absent: all other columns are the inputs, numbers and categories.",
    )
    ignore: str | None = Field(
        None, description="Columns of a CSV or parquet file that are not inputs, separated by commas."
    )
    partition: str = Field(
        "dirichlet:0.1",
        description="How samples go to clients: iid, dirichlet:BETA, pathological:CLASSES, domain, by:COLUMN, or "
        "file:PATH.",
    )
    test_fraction: float = Field(0.25, gt=0, lt=1, description="Share of each client's samples kept for testing.")
    validation_fraction: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of each client's train samples kept for validation (at least one): they choose the best "
        "round, the early stop and the kept model. 0: the test samples choose, as in the paper.",
    )
    models: str = Field(
        "small",
        description="A model group, or architectures separated by commas; client i gets number i mod count. Absent: "
        "small for images, sensor, table or text where the dataset's name says that it is of another kind.",
    )
    feature_dim: int = Field(
        512, ge=1, le=65_536, description="The common width of all networks' features; the paper's is 512."
    )
    clients: int = Field(20, ge=1, le=1_000_000, description="Number of clients.")
    participation: float = Field(1.0, gt=0, le=1, description="Share of the clients that train in each round.")
    sampler: Annotated[str, AfterValidator(samplers.check), samplers] | None = Field(
        None,
        description="How a round's participants are drawn. uniform: a fixed number, without replacement; poisson: each "
        "client independently. Under the privacy guarantee always poisson, else uniform when absent.",
    )
    rounds: int = Field(1000, ge=1, description="Rounds at most; `patience` usually ends a run earlier.")
    local_epochs: int = Field(1, ge=1, description="Epochs over a client's own data in each round.")
    batch_size: int = Field(10, ge=1, description="Batch size of local training.")
    client_lr: float = Field(0.01, gt=0, description="The clients' learning rate.")
    optimizer: Optimizer = Field(
        default_factory=Optimizer, description="How clients take their steps: plain SGD by default, as in the paper."
    )
    schedule: Schedule = Field(
        default_factory=Schedule, description="How the clients' rate changes over the rounds; constant by default."
    )
    augment: Augment = Field(
        default_factory=Augment, description="Random changes of training images; none by default, as in the paper."
    )
    amp: Amp = Field(
        "off",
        description="Mixed precision in training: bf16 computes the networks' passes in bfloat16. FedL2G's guiding "
        "step and all predictions stay in full precision.",
    )
    protocol: ProtocolName = Field(
        "ours",
        description="The defaults of reshuffle, equal_start, partition_seed and FedL2G's quiz. ours: true, false, the "
        "seed, fixed. paper, as in the authors' code: false, true, 1, first.",
    )
    reshuffle: bool | None = Field(
        None,
        description="Draw a new order of the samples for each epoch; false keeps the order of the partition. Absent: "
        "by the protocol, true with ours.",
    )
    equal_start: bool | None = Field(
        None,
        description="Start clients of one architecture with equal weights. Absent: by the protocol, false with ours.",
    )
    seed: int = Field(0, ge=0, lt=2**32, description="Determines every random choice of the run.")
    partition_seed: int | None = Field(
        None,
        ge=0,
        lt=2**32,
        description="Seed of the partition, so that runs with different seeds can share one. Absent: by the protocol, "
        "the run's own seed with ours.",
    )
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
    device: str = Field(
        "cpu", description="Where networks compute: auto, cpu, mps, cuda, or a list such as cuda:0,cuda:1."
    )
    noise: Noise = Field(
        default_factory=Noise, description="The paper's noise on uploads (no privacy guarantee); off by default."
    )
    aggregation: Aggregation = Field(
        default_factory=Aggregation,
        description="How the server combines replies: the name of a rule, or a table with `rule`.",
    )
    attack: Attack = Field(default_factory=Attack, description="Simulated hostile clients; none by default.")
    availability: Availability = Field(
        default_factory=Availability, description="Simulated unstable, slow, absent and late clients; none by default."
    )
    privacy: Privacy = Field(
        default_factory=Privacy, description="Differential privacy of uploads with a stated guarantee; off by default."
    )
    replies: Replies = Field(
        default_factory=Replies, description="Which replies count on the engine flower: its deadline and minimum."
    )
    execution: Execution = Field(default_factory=Execution, description="How the run is executed; changes no number.")

    def __init__(self, **settings: Any) -> None:
        """Validate settings; raises SettingError with a one-sentence message."""
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise SettingError(one_sentence(error, type(self))) from error

    @model_validator(mode="before")
    @classmethod
    def _models_of_the_kind(cls, values: Any) -> Any:
        return checks.with_models(values)

    @field_validator("method", mode="before")
    @classmethod
    def _resolve_method(cls, value: object) -> Options:
        return value if isinstance(value, Options) else _method_options(value)

    @field_validator("aggregation", mode="before")
    @classmethod
    def _expand_rule(cls, value: object) -> object:
        return {"rule": value} if isinstance(value, str) else value

    @field_validator("models", mode="before")
    @classmethod
    def _join_models(cls, value: object) -> object:
        return ",".join(value) if isinstance(value, list | tuple) and all(isinstance(v, str) for v in value) else value

    @field_validator("evaluate_clients")
    @classmethod
    def _number_or_share(cls, value: int | float | None) -> int | float | None:
        if isinstance(value, float) and value > 1:
            raise SettingError(
                f"evaluate_clients: {value} is not allowed; expected a whole number of clients, or a share up to 1"
            )
        return value

    @field_validator("models", "partition", "device")
    @classmethod
    def _known_spelling(cls, value: str, info: ValidationInfo) -> str:
        checks.check_spelling(str(info.field_name), value)
        return value

    @model_validator(mode="after")
    def _check_combinations(self) -> Experiment:
        layouts.check_layout(self)
        checks.check_method(self)
        checks.check_privacy(self)
        return self

    @property
    def architectures(self) -> tuple[str, ...]:
        """The architectures, assigned to the clients round-robin."""
        return resolve_models(self.models)

    @property
    def auxiliary(self) -> str | None:
        """The auxiliary network that the method's options name; None if they name none."""
        return get_method(self.method.name).named_auxiliary(self.method)

    @property
    def channels_last(self) -> frozenset[str]:
        """The architectures that use this memory layout; none while the layout is `auto`."""
        return layouts.channels_last(self)

    def with_rounds(self, rounds: int) -> Experiment:
        """The same experiment with another number of rounds."""
        return Experiment(**{**dict(self), "rounds": rounds})

    def settled(self, layout: str) -> Experiment:
        """The experiment with these layouts in place of `auto`."""
        return Experiment(**{**dict(self), "layout": layout}) if self.layout == "auto" else self

    @property
    def evaluated_per_round(self) -> int:
        """The number of clients in each evaluation."""
        wanted = self.evaluate_clients
        if wanted is None:
            return self.clients
        return min(self.clients, wanted if isinstance(wanted, int) else max(1, int(self.clients * wanted + 1e-9)))

    @property
    def participants_per_round(self) -> int:
        """max(1, int(N * rho)), safe against 0.29 * 100 = 28.999..."""
        return max(1, int(self.clients * self.participation + 1e-9))

    @property
    def choices(self) -> Choices:
        """What this experiment's settings choose or, where they are absent, its protocol."""
        return choices_of(self)

    @property
    def sampler_name(self) -> str:
        """The sampler in use: the one given, or the default."""
        return identity.sampler_in_use(self.sampler, protected=self.privacy.on)

    @property
    def selection(self) -> Literal["validation", "test"]:
        """The samples that choose the best round."""
        return "validation" if self.validation_fraction else "test"

    @property
    def references(self) -> list[str]:
        """The Python code that the settings name, as `package.module:name`."""
        return references_in(self.model_dump(mode="json"))

    @property
    def fingerprint(self) -> str:
        """A hash of the settings that determine the results: equal for experiments with equal results."""
        return self.fingerprint_with(self.rounds)

    def fingerprint_with(self, rounds: int | None) -> str:
        """The fingerprint of this experiment with another number of rounds; None: the same for all numbers."""
        dumped = resolved(self.model_dump(mode="json"), self.choices)
        settings = {**dumped, "sampler": self.sampler_name, "rounds": rounds}
        if self.layout != "auto":  # resolved, so that a changed table gives another fingerprint
            settings["layout"] = sorted(self.channels_last)
        return identity.fingerprint(settings)

    def to_toml(self) -> str:
        """All settings as a TOML document that `from_toml` reads back to an equal experiment."""
        headings = {name: field.description or "" for name, field in type(self).model_fields.items()}
        return files.write_settings(self.model_dump(mode="json", exclude_none=True), headings)

    @classmethod
    def from_toml(cls, text: str, overrides: Mapping[str, Any] | None = None) -> Experiment:
        """Read an experiment from TOML text and apply overrides (dotted names allowed)."""
        return cls(**files.overlay(files.parse_settings(text), overrides or {}))

    @classmethod
    def from_file(cls, path: Path, overrides: Mapping[str, Any] | None = None) -> Experiment:
        """Read an experiment file and apply overrides (dotted names allowed)."""
        return cls(**files.overlay(files.read_settings(path), overrides or {}))


def _method_options(value: object) -> Options:
    table = {"name": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping):
        raise SettingError(f"method: {shown(value)} is not allowed; expected a name or a table of settings")
    name = table.get("name", DEFAULT_METHOD)
    if not isinstance(name, str):
        raise SettingError(f"method.name: {shown(name)} is not allowed; expected text")
    options = get_method(name).options
    try:
        return options.model_validate({**table, "name": name})
    except ValidationError as error:
        raise SettingError(one_sentence(error, options, prefix="method.")) from error
