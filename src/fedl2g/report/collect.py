"""Reads runs from their directories and groups them by what they have in common (imports no torch)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from fedl2g.errors import RunError, SettingError
from fedl2g.experiment import default_settings, flat
from fedl2g.experiment.files import written_out
from fedl2g.experiment.identity import belongs, sampler_in_use
from fedl2g.folder import MIB, Folder
from fedl2g.round.record import RoundRecord
from fedl2g.runs.directory import RunDirectory, find_runs
from fedl2g.seals import read_sealed

if TYPE_CHECKING:
    from fedl2g.datasets import Dataset
    from fedl2g.methods.base import Traits

COMPARISON = "comparison.json"  # written by runs/comparison.py, which needs torch
_COMPARISON_LIMIT = 64 * MIB
# Settings that tables and charts compute with; nothing else checks them when a run is only read.
_TYPES = {
    "method.name": str,
    "dataset": str,
    **dict.fromkeys(("clients", "rounds", "seed", "method.warmup_rounds"), int),
}


@dataclass(frozen=True)
class Run:
    """One run as read from its directory."""

    directory: RunDirectory
    settings: dict[str, Any]  # flat: "method.server_lr"
    history: list[RoundRecord] = field(repr=False)
    status: str = "unfinished"  # when it was read: of its result, or running, or unfinished

    @property
    def method(self) -> str:
        return str(self.settings["method.name"])

    @property
    def seed(self) -> int:
        return int(self.settings["seed"])

    @property
    def warmup_rounds(self) -> int:
        return int(self.settings.get("method.warmup_rounds", 0))

    @property
    def traits(self) -> Traits | None:
        """The traits of its method; None if the method is not installed.

        A method that is code of the run was trusted when the run was opened (`read_runs`).
        """
        from fedl2g.methods.registry import get_method

        try:
            return get_method(self.method).traits
        except SettingError:
            return None


DATA_SETTINGS = (
    "dataset", "samples", "image_size", "partition", "clients", "test_fraction", "protocol", "partition_seed",
)  # fmt: skip
"""The settings that say, with the seed, which samples each client has."""


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed."""

    label: str
    runs: tuple[Run, ...]

    @property
    def method(self) -> str:
        return self.runs[0].method

    @property
    def traits(self) -> Traits | None:
        return self.runs[0].traits

    @property
    def seeds(self) -> list[int]:
        return [run.seed for run in self.runs]

    @property
    def over(self) -> bool:
        """Whether no run of it goes on or waits to be continued."""
        return all(run.status not in ("running", "unfinished") for run in self.runs)


def read_runs(paths: Iterable[Path], *, trust: bool = False) -> list[Run]:
    """The runs in these directories and in folders of runs; one that names code is refused unless it is trusted."""
    found: dict[Path, Run] = {}
    for path in paths:
        for run in in_order(path, find_runs(path)) or [RunDirectory(path)]:
            directory = RunDirectory.open(run.path, trust=trust)
            found.setdefault(directory.path.resolve(), _read(directory))
    return list(found.values())


def in_order(folder: Path, runs: list[RunDirectory]) -> list[RunDirectory]:
    """The runs of a comparison in the order in which its methods were given; other runs as they were started."""
    given = []
    if Folder(folder).status(COMPARISON) is not None:  # else no comparison, or not finished yet
        values = read_sealed(
            Folder(folder), COMPARISON, limit=_COMPARISON_LIMIT, remedy="`fedl2g compare` writes it again"
        )
        try:
            given = [Path(run["run"]).name for method in values["methods"].values() for run in method["runs"]]
        except (LookupError, TypeError, AttributeError) as error:
            raise RunError(f"{folder / COMPARISON}: not a comparison; `fedl2g compare` writes it again") from error
    places = {name: place for place, name in enumerate(given)}
    return sorted(runs, key=lambda run: (places.get(run.path.name, len(given)), _started(run), run.path))


def _started(run: RunDirectory) -> str:
    try:
        return str(run.about()["created"])
    except RunError:
        return ""  # damaged: reading it will say so


def _read(directory: RunDirectory) -> Run:
    run = Run(directory, _comparable(directory.settings()), directory.history(), _status(directory))
    found = {"method.warmup_rounds": 0, **run.settings}
    for name, kind in _TYPES.items():
        if type(found.get(name)) is not kind:
            raise RunError(
                f"{directory.path / 'experiment.toml'}: {name} is missing or of the wrong type; restore it from a copy"
            )
    if run.settings["clients"] != directory.about()["clients"]:
        raise RunError(
            f"{directory.path}: experiment.toml and run.json belong to different runs; restore them from a copy"
        )
    for record in run.history:
        named = [*record.participants, *record.refused, *record.missing, *record.away, *record.late, *record.hostile]
        named += [*record.client_losses, *(record.accuracy.clients if record.accuracy is not None else ())]
        if not all(0 <= client < run.settings["clients"] for client in named):
            raise RunError(
                f"{directory.metrics}: round {record.round} names a client that the run does not have; restore it from "
                "a copy"
            )
    return run


def _status(directory: RunDirectory) -> str:
    result = directory.result()
    if result is not None:
        return result.status
    return "running" if directory.running else "unfinished"


def _comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Normalized settings, equal for equivalent experiment files.

    Top-level settings are complete; of tables only the non-default settings are kept, so that reports stay readable.
    """
    defaults = default_settings()
    single = {name: value for name, value in defaults.items() if "." not in name}
    given = {name: v for name, v in flat(written_out(settings)).items() if "." not in name or v != defaults.get(name)}
    sampler = sampler_in_use(given.get("sampler"), protected="privacy.clip" in given)
    return {**single, **given, "sampler": sampler}


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Group runs by all settings except the seed; labels name the method and the settings that differ."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_group_of(run), []).append(run)
    identities = {key: _identity(members[0]) for key, members in groups.items()}
    common = [k for k in _differing(identities.values()) if not k.startswith("method.")]
    result = []
    for key, members in groups.items():
        own = identities[key]
        rivals = [one for one in identities.values() if one["method.name"] == own["method.name"]]
        told = set.intersection(*(_told_by_preset(one) for one in rivals))
        differing = [k for k in _differing(rivals) if k.startswith("method.") and k not in told] + common
        distinct = [f"{k.removeprefix('method.')}={_short(own[k])}" for k in differing if k in own]
        label = ", ".join([str(own["method.name"]), *distinct])
        result.append(Group(label, _one_per_seed(members)))
    return result


def without_repeated(runs: Sequence[Run]) -> list[Run]:
    """Without the earlier runs of what a process runs again now, for a page about what is going on."""
    going_on = {(_group_of(run), run.seed) for run in runs if run.status == "running"}
    return [run for run in runs if run.status == "running" or (_group_of(run), run.seed) not in going_on]


def _group_of(run: Run) -> str:
    return json.dumps(_identity(run), sort_keys=True, default=str)


def _one_per_seed(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The runs by seed. Of equal runs the one that got furthest: the same seed twice is not two seeds."""
    found: dict[int, Run] = {}
    for run in sorted(runs, key=lambda run: (run.seed, len(run.history))):
        found[run.seed] = run
    return tuple(found.values())


def _identity(run: Run) -> dict[str, Any]:
    return {k: v for k, v in run.settings.items() if k != "seed" and belongs(k)}


def _differing(settings: Iterable[Mapping[str, Any]]) -> list[str]:
    rows = list(settings)
    keys = dict.fromkeys(k for row in rows for k in row)
    return [k for k in keys if len({json.dumps(row.get(k), default=str) for row in rows}) > 1 and k != "method.name"]


def _told_by_preset(settings: Mapping[str, Any]) -> set[str]:
    """The options of the method that are as its preset has them: naming the preset says it all."""
    from fedl2g.methods.registry import get_method, method_names

    name, preset = settings["method.name"], settings.get("method.preset")
    if preset is None or name not in method_names():  # looking up a reference would import it
        return set()
    try:
        own = get_method(name).options.model_validate({"preset": preset}).model_dump()
    except ValidationError:  # of another version
        return set()
    return {f"method.{key}" for key, value in own.items() if settings.get(f"method.{key}") == value} - {"method.preset"}


def _short(value: object) -> str:
    text = str(value)
    return Path(text).stem if text.endswith(".npz") else text


def diverged_round(run: Run) -> int | None:
    """The round in which a run diverged; None if it did not."""
    if run.status != "diverged":
        return None
    return (run.history[-1].round if run.history else 0) + 1


def cached_dataset(fingerprint: str) -> Dataset | None:
    """The dataset with this fingerprint from the local cache; downloads nothing and imports no code of a run."""
    from fedl2g.datasets import Dataset
    from fedl2g.datasets.cache import cache_folder

    for meta in sorted(cache_folder(None).glob("[!.]*/meta.json")):  # entries being written start with a dot
        try:
            if json.loads(meta.read_text(encoding="utf-8")).get("fingerprint") == fingerprint:
                return Dataset.open(meta.parent)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # incomplete or damaged: the loader repairs it
    return None


def partition_counts(run: Run) -> dict[str, Any]:
    """Samples by client and class; only each client's total if the dataset is not in the local cache."""
    dataset = cached_dataset(str(run.directory.about()["dataset_fingerprint"]))
    partition = run.directory.partition(None if dataset is None else len(dataset.labels))
    sizes = [[len(a), len(b)] for a, b in zip(partition.train, partition.test, strict=True)]
    if dataset is None:
        return {"sizes": sizes, "counts": None, "classes": None, "dataset": None}
    counts = partition.counts(np.asarray(dataset.labels), dataset.classes)
    rows, columns = np.nonzero(counts)
    sparse = [[int(r), int(c), int(counts[r, c])] for r, c in zip(rows, columns, strict=True)]
    names = list(dataset.class_names)
    return {"sizes": sizes, "counts": sparse, "classes": dataset.classes, "class_names": names, "dataset": dataset.name}
