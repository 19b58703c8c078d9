"""Collects the contents of a report from run directories as JSON values (imports no torch)."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedl2g.errors import RunError, SettingError
from fedl2g.experiment import default_settings, flat
from fedl2g.experiment.files import written_out
from fedl2g.experiment.identity import belongs, sampler_in_use
from fedl2g.round.record import MB, RoundRecord, seconds_per_client, selected_record
from fedl2g.runs.directory import RunDirectory, find_runs

if TYPE_CHECKING:
    from fedl2g.data import Dataset
    from fedl2g.methods.base import Traits


@dataclass(frozen=True)
class Run:
    """One run as read from its directory."""

    directory: RunDirectory
    settings: dict[str, Any]  # flat: "method.server_lr"
    history: list[RoundRecord] = field(repr=False)

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
    def status(self) -> str:
        result = self.directory.result()
        return "unfinished" if result is None else result.status

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


def read_runs(paths: Iterable[Path], *, trust: bool = False) -> list[Run]:
    """The runs in these directories and in folders of runs; one that names code is refused unless it is trusted."""
    found: dict[Path, Run] = {}
    for path in paths:
        for run in find_runs(path) or [RunDirectory(path)]:
            directory = RunDirectory.open(run.path, trust=trust)
            found.setdefault(directory.path.resolve(), _read(directory))
    return list(found.values())


def _read(directory: RunDirectory) -> Run:
    run = Run(directory, _comparable(directory.settings()), directory.history())
    if "method.name" not in run.settings:
        raise RunError(f"{directory.path / 'experiment.toml'}: no method; restore the file from a copy")
    return run


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
        groups.setdefault(json.dumps(_identity(run), sort_keys=True, default=str), []).append(run)
    identities = {key: _identity(members[0]) for key, members in groups.items()}
    common = [k for k in _differing(identities.values()) if not k.startswith("method.")]
    result = []
    for key, members in groups.items():
        own = identities[key]
        rivals = [one for one in identities.values() if one["method.name"] == own["method.name"]]
        differing = [k for k in _differing(rivals) if k.startswith("method.")] + common
        distinct = [f"{k.removeprefix('method.')}={_short(own[k])}" for k in differing if k in own]
        label = ", ".join([str(own["method.name"]), *distinct])
        result.append(Group(label, tuple(sorted(members, key=lambda run: run.seed))))
    return result


def _identity(run: Run) -> dict[str, Any]:
    return {k: v for k, v in run.settings.items() if k != "seed" and belongs(k)}


def _differing(settings: Iterable[Mapping[str, Any]]) -> list[str]:
    rows = list(settings)
    keys = dict.fromkeys(k for row in rows for k in row)
    return [k for k in keys if len({json.dumps(row.get(k), default=str) for row in rows}) > 1 and k != "method.name"]


def _short(value: object) -> str:
    text = str(value)
    return Path(text).stem if text.endswith(".npz") else text


def band(series: Sequence[Mapping[int, float]]) -> dict[str, list[Any]]:
    """Rounds, and the mean, minimum and maximum over seeds; values that are not finite are left out."""
    rounds = sorted(set().union(*series)) if series else []
    columns = [[one[r] for one in series if r in one and math.isfinite(one[r])] for r in rounds]
    kept = [(r, column) for r, column in zip(rounds, columns, strict=True) if column]
    return {
        "x": [r for r, _ in kept],
        "y": [number(statistics.fmean(c)) for _, c in kept],
        "low": [number(min(c)) for _, c in kept],
        "high": [number(max(c)) for _, c in kept],
    }


def number(value: float | None, digits: int = 6) -> float | None:
    """A number rounded to `digits` significant digits; None if it is not finite, which JSON cannot express."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def accuracy_series(history: Iterable[RoundRecord]) -> dict[int, float]:
    """Pooled test accuracy by round."""
    return {r.round: r.accuracy.pooled for r in history if r.accuracy is not None}


def best_accuracy(run: Run) -> float:
    """Pooled test accuracy in the best round; NaN before the first evaluation."""
    best = selected_record(run.history)
    return float("nan") if best is None or best.accuracy is None else best.accuracy.pooled


def loss_series(history: Iterable[RoundRecord]) -> dict[int, float]:
    """Original local loss (cross entropy alone) by round."""
    return {r.round: r.loss for r in history if r.loss is not None}


def trained_losses(run: Run) -> dict[int, float]:
    """Original local loss by round of training; warm-up rounds, which train no model, are skipped."""
    return dict(enumerate(loss_series(run.history).values(), start=1))


def spent_megabytes(run: Run) -> dict[float, float]:
    """Accuracy by cumulative megabytes in both directions, summed over participants."""
    total, series = 0.0, {}
    for record in run.history:
        total += (record.up_bytes + record.down_bytes) / MB
        if record.accuracy is not None:
            series[total] = record.accuracy.pooled
    return series


def cost(run: Run) -> dict[str, float | None]:
    """Mean megabytes of a round (all clients), seconds of the server and of one client; warm-up rounds separately."""
    rounds = [r for r in run.history if r.round > 0]
    warm = [r for r in rounds if r.round <= run.warmup_rounds]
    training = [r for r in rounds if r.round > run.warmup_rounds]

    def mean(values: Sequence[float]) -> float | None:
        return number(statistics.fmean(values)) if values else None

    client_total = sum(r.client_seconds for r in rounds)
    return {
        "up_mb": mean([r.up_bytes / MB for r in rounds]),
        "down_mb": mean([r.down_bytes / MB for r in rounds]),
        "client_s": number(seconds_per_client(training)),
        "warmup_client_s": number(seconds_per_client(warm)),
        "server_s": mean([r.server_seconds for r in rounds]),
        "warmup_share": number(sum(r.client_seconds for r in warm) / client_total) if warm and client_total else None,
    }


def client_spread(run: Run) -> dict[str, Any] | None:
    """Every client's accuracy in the best round."""
    best = selected_record(run.history)
    if best is None or best.accuracy is None:
        return None
    return {
        "seed": run.seed,
        "round": best.round,
        "clients": [[client, number(value, 4)] for client, value in sorted(best.accuracy.clients.items())],
    }


def diverged_round(run: Run) -> int | None:
    """The round in which a run diverged; None if it did not."""
    if run.status != "diverged":
        return None
    return (run.history[-1].round if run.history else 0) + 1


def cached_dataset(fingerprint: str) -> Dataset | None:
    """The dataset with this fingerprint from the local cache; downloads nothing and imports no code of a run."""
    from fedl2g.data import Dataset
    from fedl2g.data.cache import cache_folder

    for meta in sorted(cache_folder(None).glob("[!.]*/meta.json")):  # entries being written start with a dot
        try:
            if json.loads(meta.read_text(encoding="utf-8")).get("fingerprint") == fingerprint:
                return Dataset.open(meta.parent)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # incomplete or damaged: the loader repairs it
    return None


def partition_counts(run: Run) -> dict[str, Any]:
    """Samples by client and class; only each client's total if the dataset is not in the local cache."""
    partition = run.directory.partition()
    dataset = cached_dataset(str(run.directory.about()["dataset_fingerprint"]))
    sizes = [[len(a), len(b)] for a, b in zip(partition.train, partition.test, strict=True)]
    if dataset is None:
        return {"sizes": sizes, "counts": None, "classes": None, "dataset": None}
    counts = partition.counts(np.asarray(dataset.labels), dataset.classes)
    rows, columns = np.nonzero(counts)
    sparse = [[int(r), int(c), int(counts[r, c])] for r, c in zip(rows, columns, strict=True)]
    names = list(dataset.class_names)
    return {"sizes": sizes, "counts": sparse, "classes": dataset.classes, "class_names": names, "dataset": dataset.name}
