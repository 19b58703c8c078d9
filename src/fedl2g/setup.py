"""Prepares an experiment: loads its dataset, partitions it and resolves the memory layouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedl2g.datasets import Dataset, Partition, load_dataset, make_partition, parse_partition
from fedl2g.datasets.cache import open_if_intact
from fedl2g.datasets.tables import Roles, listed
from fedl2g.datasets.validation import hold_out
from fedl2g.errors import RunError, SettingError
from fedl2g.experiment import Experiment
from fedl2g.learning.client import Task
from fedl2g.learning.devices import resolve_device
from fedl2g.methods.registry import get_method
from fedl2g.models.catalog import check_kind, is_architecture
from fedl2g.models.size import smallest
from fedl2g.references import load_plugin, loaded_plugins
from fedl2g.schema import Schema

Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class Setup:
    """An experiment with its dataset and partition."""

    experiment: Experiment
    dataset: Dataset
    partition: Partition
    models: tuple[str, ...] = ()  # in place of the experiment's: a deployed site names its own

    @property
    def task(self) -> Task:
        """The parameters shared by the server and all clients."""
        e, choices = self.experiment, self.experiment.choices
        return Task(
            classes=self.dataset.classes,
            inputs=self.dataset.schema,
            seed=e.seed,
            rounds=e.rounds if get_method(e.method.name).traits.uses_rounds else None,
            auxiliary=auxiliary_architecture(e, self.dataset.classes, self.dataset.schema),
            batch_size=e.batch_size,
            local_epochs=e.local_epochs,
            client_lr=e.client_lr,
            reshuffle=choices.reshuffle,
            equal_start=choices.equal_start,
            quiz=choices.quiz,
            dtype=getattr(torch, e.precision),
            channels_last=e.channels_last,
            feature_dim=e.feature_dim,
            optimizer=e.optimizer,
            schedule=e.schedule,
            scheduled_rounds=e.rounds if e.schedule.uses_rounds else 1,
            augment=e.augment,
            amp=e.amp,
        )

    def architecture(self, client: int) -> str:
        """The architecture of one client."""
        names = self.models or self.experiment.architectures
        return names[client % len(names)]

    def describe(self) -> dict[str, Any]:
        """JSON values from which another process on this machine recreates the setup with `from_description`."""
        folder = self.dataset.folder
        return {
            "experiment": self.experiment.model_dump(mode="json"),
            "plugins": list(loaded_plugins()),
            "dataset": self.dataset.fingerprint,
            "folder": str(folder.resolve()) if folder is not None else None,
            "partition": self.partition.to_json(),
        }

    @classmethod
    def from_description(cls, values: dict[str, Any]) -> Setup:
        """Recreate a setup from the result of `describe`."""
        for plugin in values["plugins"]:
            load_plugin(plugin)
        experiment = Experiment(**values["experiment"])
        # Reopen the first process's cache folder: a user's dataset function must not be called by every process.
        dataset = open_if_intact(Path(values["folder"])) if values["folder"] else None
        if dataset is None:
            dataset = load_data(experiment)
        if dataset.fingerprint != values["dataset"]:
            raise RunError("dataset: changed while the run was starting; start the run again")
        return cls(experiment, dataset, Partition.from_json(values["partition"]))

    def check(self) -> None:
        """Raise SettingError, before anything is written, for a missing device or an unusable network of the user."""
        device = resolve_device(self.experiment.device)
        self._check_training(device)
        named = [*self.experiment.architectures, self.experiment.auxiliary or ""]
        for name in dict.fromkeys(named):
            check_kind(name, self.dataset.schema.kind)
            if name and not is_architecture(name):
                self.task.build(name, "check")

    def _check_training(self, device: torch.device) -> None:
        """Raise SettingError for training settings that the data or the device do not allow."""
        e, kind = self.experiment, self.dataset.schema.kind
        if e.augment.on and kind != "image":
            raise SettingError(
                f"augment: flips and crops are for images, but the data are of the kind {kind}; leave augment out"
            )
        without = device.type == "cuda" and not torch.cuda.is_bf16_supported()
        if e.amp == "bf16" and (without or not torch.amp.is_autocast_available(device.type)):
            raise SettingError(f"amp: the device {device} has no bf16; use off, or another device")


def auxiliary_architecture(experiment: Experiment, classes: int, inputs: Schema) -> str:
    """The architecture of the server's network; an auxiliary one is the group's smallest unless the method names it."""
    traits, group = get_method(experiment.method.name).traits, experiment.architectures
    if not traits.auxiliary_network:
        return group[0]  # only its head is used, and all heads are alike
    return experiment.auxiliary or smallest(group, classes=classes, inputs=inputs, feature_dim=experiment.feature_dim)


def prepare(experiment: Experiment, progress: Progress | None = None, data: Dataset | None = None) -> Setup:
    """Load the dataset unless it is given, partition it and resolve the layouts."""
    dataset = load_data(experiment, progress) if data is None else data
    return Setup(settle_layout(experiment, dataset), dataset, partition_of(experiment, dataset))


def load_data(experiment: Experiment, progress: Progress | None = None) -> Dataset:
    """The dataset of an experiment."""
    return load_dataset(
        experiment.dataset,
        samples=experiment.samples,
        image_size=experiment.image_size,
        progress=progress,
        roles=roles_of(experiment),
    )


def roles_of(experiment: Experiment) -> Roles:
    """Which column of a table is what."""
    return Roles(
        experiment.label,
        listed(experiment.text),
        listed(experiment.ignore),
        parse_partition(experiment.partition).column,
    )


def partition_of(experiment: Experiment, dataset: Dataset) -> Partition:
    """The partition of the dataset among the clients, with their validation samples if the experiment has any."""
    partition = make_partition(
        experiment.partition,
        dataset.labels,
        dataset.groups,
        clients=experiment.clients,
        classes=dataset.classes,
        seed=experiment.choices.partition_seed,
        test_fraction=experiment.test_fraction,
        column=dataset.group_column,
        split=dataset.split,
    )
    return with_validation(partition, experiment, dataset)


def with_validation(partition: Partition, experiment: Experiment, dataset: Dataset) -> Partition:
    """The partition with the validation samples that the experiment asks for, unless it already names some."""
    fraction = experiment.validation_fraction
    if partition.validation and not fraction:
        raise SettingError(
            f"validation_fraction: 0, but the partition {experiment.partition!r} or the data name validation samples; "
            "set it above 0 to choose the best round on them, or leave them out of the data"
        )
    if partition.validation or not fraction:
        return partition
    return hold_out(partition, dataset.labels, fraction, experiment.choices.partition_seed)


def settle_layout(experiment: Experiment, dataset: Dataset) -> Experiment:
    """Replace the layout `auto` by the faster layouts on this machine: they affect the numbers."""
    if experiment.layout != "auto":
        return experiment
    if resolve_device(experiment.device).type != "cpu":
        raise SettingError(
            f"layout: auto is measured on the CPU, which says nothing of the device {experiment.device!r}; choose "
            "preset, contiguous or channels_last"
        )
    from fedl2g.models.calibration import faster_layout

    layouts = {
        name: faster_layout(name, classes=dataset.classes, inputs=dataset.schema, batch_size=experiment.batch_size)
        for name in dict.fromkeys(experiment.architectures)
    }
    return experiment.settled(",".join(f"{name}={layout}" for name, layout in layouts.items()))
