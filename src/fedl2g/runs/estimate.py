"""Estimates how long a run will take on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from fedl2g.datasets import load_dataset
from fedl2g.datasets.named import CATALOG
from fedl2g.datasets.tables import Roles
from fedl2g.experiment import Experiment
from fedl2g.methods.registry import get_method
from fedl2g.schema import Schema, image_schema
from fedl2g.setup import auxiliary_architecture, roles_of


@dataclass(frozen=True)
class DataSize:
    """The properties of a dataset that determine the cost of training on it."""

    samples: int
    classes: int
    inputs: Schema


@cache
def data_size(dataset: str, image_size: int | None = None, roles: Roles | None = None) -> DataSize:
    """The size of a dataset; named images are not downloaded for it, other data are loaded."""
    if dataset in CATALOG:
        entry = CATALOG[dataset]
        if entry.inputs is not None:
            return DataSize(entry.samples, entry.classes, entry.inputs)
        if entry.kind != "image":  # it needs no download
            loaded = load_dataset(dataset)
            return DataSize(len(loaded), loaded.classes, loaded.schema)
        pixels = image_size or entry.image_size
        return DataSize(entry.samples, entry.classes, image_schema(3, pixels, pixels))
    loaded = load_dataset(dataset, image_size=image_size, roles=roles)  # the run will find it in the cache
    return DataSize(len(loaded), loaded.classes, loaded.schema)


def estimate_seconds(experiment: Experiment) -> float:
    """An upper bound on the CPU seconds of a run (no early stopping): measured step times x number of steps.

    Clients are assumed to be equally large. The method's traits give its cost beyond plain training: a step of the
    auxiliary network for each training step, extra passes per round, warm-up rounds without training. Evaluating a
    batch is assumed to cost a third of a training step.
    """
    from fedl2g.models.calibration import step_seconds

    size = data_size(experiment.dataset, experiment.image_size, roles_of(experiment))
    samples = experiment.samples or size.samples
    batch = max(experiment.batch_size, 2)
    method = get_method(experiment.method.name)
    traits = method.traits

    def step(architecture: str) -> float:
        layout = "channels_last" if architecture in experiment.channels_last else "contiguous"
        return step_seconds(architecture, classes=size.classes, inputs=size.inputs, batch_size=batch, layout=layout)

    names = experiment.architectures
    mean_step = sum(step(names[i % len(names)]) for i in range(experiment.clients)) / experiment.clients
    auxiliary = 0.0
    if traits.auxiliary_network:
        auxiliary = step(auxiliary_architecture(experiment, size.classes, size.inputs))
    train = samples * (1 - experiment.test_fraction) / experiment.clients
    steps = max(train // batch, 1) * experiment.local_epochs * experiment.participants_per_round
    extra = traits.extra_passes * experiment.participants_per_round * mean_step
    warmup = min(method.warmup_rounds(experiment.method), experiment.rounds)
    evaluation = samples * experiment.test_fraction / batch * mean_step / 3 / experiment.evaluate_every
    trained = experiment.rounds - warmup
    return trained * (steps * (mean_step + auxiliary) + evaluation) + experiment.rounds * extra


def duration(seconds: float) -> str:
    """A human-readable duration."""
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:,.1f} {unit}"
    whole = max(round(seconds), 1)
    return f"{whole} seconds" if whole > 1 else "1 second"
