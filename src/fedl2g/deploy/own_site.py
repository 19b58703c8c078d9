"""Builds the client of a site from its site file: data with the federation's labels, split and model."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from fedl2g.datasets import Dataset, Partition, load_dataset, make_partition
from fedl2g.datasets.kinds import HUB
from fedl2g.datasets.tables import Roles, listed
from fedl2g.deploy.site_file import SiteFile
from fedl2g.engines.flower.messages import Request
from fedl2g.engines.flower.node import Node
from fedl2g.errors import DataError, RunError, SettingError, choices
from fedl2g.experiment import Experiment
from fedl2g.files import reason_of
from fedl2g.folder import Folder
from fedl2g.learning.devices import resolve_device
from fedl2g.privacy.noise_key import KEY_VARIABLE, check_key, key_fingerprint
from fedl2g.references import is_reference, references_in, require_trust
from fedl2g.schema import Schema, image_schema
from fedl2g.seals import read_sealed, sealed, write_sealed
from fedl2g.setup import Setup, with_validation

_FEDERATION = "federation.json"


def make_node(file: SiteFile, request: Request) -> Node:
    """The node that answers a request with this site's model and data."""
    experiment = request.experiment
    if file.client_id >= experiment.clients:
        raise SettingError(
            f"client-id: {file.client_id} is not in this federation; expected 0 to {experiment.clients - 1}"
        )
    _check_runs(file, request.run)
    dataset = load_data(file, request.classes, request.inputs)
    _describe(file, request)
    return Node(file.client_id, own_site(file, experiment, dataset), resolve_device(file.device), file.path(file.store))


def _check_runs(file: SiteFile, run: str) -> None:
    """Refuse a new run if this site stores as many as it allows."""
    stored = {path.parent.name for path in file.path(file.store).glob(f"*/{_FEDERATION}")}
    if run not in stored:
        file.limits.check_runs(len(stored))


def _describe(file: SiteFile, request: Request) -> None:
    """Store what is learnt beside the models: an export needs it without the coordinator."""
    folder = Folder(file.path(file.store)) / request.run
    about = {
        "classes": request.classes,
        "inputs": request.inputs.to_json(),
        "experiment": request.experiment.model_dump(mode="json", exclude={"execution"}),
    }
    if request.experiment.privacy.on and request.experiment.privacy.noise == "client":
        about["noise_key"] = _bound_key(folder)
    try:
        if folder.is_file(_FEDERATION) and folder.text(_FEDERATION) == sealed(about, of=request.run):
            return
        folder.make()
    except (OSError, ValueError) as error:
        raise RunError(f"{folder.path}: cannot be written ({reason_of(error)}); check the site's store") from error
    write_sealed(folder, _FEDERATION, about, of=request.run)


def _bound_key(folder: Folder) -> str:
    """The fingerprint of this site's noise key in a run, which began with it; SettingError without or with another."""
    if (fingerprint := key_fingerprint()) is None:
        raise SettingError(
            f"{KEY_VARIABLE}: not set at this site, which draws the noise of its uploads; expected a long random "
            "secret; set it before the SuperNode is started"
        )
    described = folder.status(_FEDERATION) is not None
    kept = read_sealed(folder, _FEDERATION, of=folder.parts[-1]).get("noise_key") if described else None
    if kept is None:
        return fingerprint
    check_key(kept, folder.path)
    return str(kept)


def stored_setup(file: SiteFile, run: str, *, trust: bool = False) -> Setup:
    """The setup of a site in a run that it took part in, from the run's folder in its store."""
    experiment, classes, inputs = stored_request(Folder(file.path(file.store)) / run, trust=trust)
    return own_site(file, experiment, load_data(file, classes, inputs))


def stored_request(run: Folder, *, trust: bool = False) -> tuple[Experiment, tuple[str, ...], Schema]:
    """What a site learns in a run that it took part in: the experiment, the classes and the form of a sample."""
    path = run.path / _FEDERATION
    about = read_sealed(run, _FEDERATION, of=run.parts[-1])
    try:
        settings: dict[str, Any] = dict(about["experiment"])
        classes = tuple(map(str, about["classes"]))
        inputs = Schema.from_json(about["inputs"]) if "inputs" in about else image_schema(*about["image_shape"])
        require_trust(references_in(settings), path, trust=trust)
        experiment = Experiment(**settings)
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise RunError(f"{path}: cannot be read ({reason_of(error)}); restore it from a copy") from error
    return experiment, classes, inputs


def load_data(file: SiteFile, classes: tuple[str, ...], inputs: Schema) -> Dataset:
    """The site's samples, with the federation's labels."""
    file.use_code()
    named = file.data.startswith(HUB) or (is_reference(file.data) and not file.path(file.data).exists())
    if not named and not file.path(file.data).exists():
        raise DataError(
            f"data: {file.path(file.data)} does not exist; expected a file, a folder, hf:NAME or "
            "package.module:function; correct site.toml"
        )
    size = inputs.shape[1] if inputs.kind == "image" and inputs.shape[1] == inputs.shape[2] else None
    found = load_dataset(
        file.data if named else str(file.path(file.data)),
        image_size=size,
        data_dir=file.path(file.store) / "data",
        roles=Roles(file.label, listed(file.text), inputs=inputs),
    )
    if found.schema != inputs:
        raise DataError(f"data: {file.data} holds {found.schema}; expected {inputs}")
    return renumber(found, classes)


def renumber(dataset: Dataset, classes: tuple[str, ...]) -> Dataset:
    """The dataset with labels as positions in the federation's list of classes, matched by name, else by number."""
    found = dataset.class_names
    if all(name in classes for name in found):
        numbers = [classes.index(name) for name in found]
    elif all(name.isdigit() and int(name) < len(classes) for name in found):
        numbers = [int(name) for name in found]
    else:
        wrong = next(name for name in found if name not in classes)
        raise DataError(f"data: class {wrong!r} is not one of the federation's; {choices(wrong, classes)}")
    labels = np.asarray(numbers, dtype=np.int64)[dataset.labels]
    return dataclasses.replace(dataset, labels=labels, class_names=classes, folder=None)


def own_site(file: SiteFile, experiment: Experiment, dataset: Dataset) -> Setup:
    """The setup of a site: its client holds all of its data, split here into train, test and validation samples."""
    split = make_partition(
        f"file:{file.path(file.split)}" if file.split else "iid",
        dataset.labels,
        None,
        clients=1,
        classes=dataset.classes,
        seed=experiment.choices.partition_seed,
        test_fraction=experiment.test_fraction,
        split=dataset.split,
    )
    empty = np.empty(0, dtype=np.int64)
    held = [split if client == file.client_id else None for client in range(experiment.clients)]
    partition = Partition(
        tuple(part.train[0] if part else empty for part in held),
        tuple(part.test[0] if part else empty for part in held),
        tuple(part.validation[0] if part else empty for part in held) if split.validation else (),
    )
    return Setup(experiment, dataset, with_validation(partition, experiment, dataset), models=(file.model,))
