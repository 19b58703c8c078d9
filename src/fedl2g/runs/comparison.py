"""A comparison: several methods and seeds on the same partitions and initial models, in one folder."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from fedl2g.datasets import Dataset
from fedl2g.errors import FedL2GError, RunError, SettingError
from fedl2g.experiment import Experiment, overlay, parse_override
from fedl2g.folder import Folder
from fedl2g.methods.registry import get_method
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.layout import is_run
from fedl2g.runs.result import RunResult, aggregate
from fedl2g.runs.verdicts import Difference, against, reference_among, same_clients
from fedl2g.seals import write_sealed

FILE = "comparison.json"


class Comparison:
    """The runs of a comparison and their results."""

    def __init__(
        self,
        directory: Path,
        experiments: dict[Path, Experiment],
        labels: dict[Path, str],
        reference: str | None = None,
    ) -> None:
        self.directory = directory
        self.experiments = experiments
        self.labels = labels
        self.reference = reference  # the method that the others are compared with
        self.results: dict[str, list[RunResult]] = {label: [] for label in dict.fromkeys(labels.values())}
        self.scores: dict[str, list[dict[str, Any]]] = {}  # of each method's runs, if they were asked for
        self.failures: dict[Path, FedL2GError] = {}  # failed runs and their errors

    @classmethod
    def plan(
        cls,
        file: Path | None,
        overrides: Mapping[str, Any],
        methods: Sequence[str],
        seeds: int,
        out: Path | None = None,
        against: str | None = None,
    ) -> Comparison:
        """Plan the runs. A method is a name, or a name with options: "fedl2g-f:server_lr=0:warmup_rounds=10".

        A setting method.NAME applies to every method of the comparison that has this option. The methods are compared
        with `against`, one of them; without it with local, if that is among them.
        """
        named = [text.strip() for text in methods]
        for text in named:
            if named.count(text) > 1:
                raise SettingError(f"methods: {text} appears {named.count(text)} times; expected each method once")
        reference = reference_among(named, None if against is None else against.strip())
        common = {key: value for key, value in overrides.items() if not key.startswith("method")}
        shared = {key: value for key, value in overrides.items() if key.startswith("method.")}
        used: set[str] = set()
        planned: dict[str, Experiment] = {}
        labels: dict[str, str] = {}
        # Seed by seed, so that an interrupted comparison covers all methods on some seeds.
        for number, text in product(range(seeds), methods):
            name, *options = text.strip().split(":")
            known = get_method(name).options.model_fields
            own = {key: value for key, value in shared.items() if key.removeprefix("method.") in known}
            used |= own.keys()
            own |= {f"method.{key}": value for key, value in map(parse_override, options)}
            base = _settings(file, {**common, "method": name, **own})
            experiment = Experiment(**{**base, "seed": base.get("seed", 0) + number})
            label = text.strip()
            folder = f"{label.replace(':', '+')}-s{experiment.seed}"
            planned[folder], labels[folder] = experiment, label
        if unused := sorted(shared.keys() - used):
            raise SettingError(
                f"{unused[0]}: unknown setting; none of the methods {', '.join(methods)} has this option"
            )
        prints = "".join(experiment.fingerprint for experiment in planned.values())
        directory = out or Path("runs") / f"compare-{hashlib.sha256(prints.encode()).hexdigest()[:8]}"
        if directory.exists() and not directory.is_dir():
            raise RunError(f"{directory}: not a folder; choose another --out")
        for folder, experiment in planned.items():
            if directory.exists() and Folder(directory).is_folder(folder) and is_run(directory / folder):
                RunDirectory.open_for(directory / folder, experiment)  # raises if it holds another experiment
        return cls(
            directory,
            {directory / folder: experiment for folder, experiment in planned.items()},
            {directory / folder: label for folder, label in labels.items()},
            reference,
        )

    def add(self, path: Path, result: RunResult) -> None:
        """Add the result of one run."""
        self.results[self.labels[path]].append(result)

    def score(self, metrics: Sequence[str], data: Dataset) -> None:
        """Compute additional scores of every run's best models; each run's scores.json has them in full."""
        from fedl2g.runs.scores import score_run

        for label, found in self.results.items():
            # `open_for`: the user named the code of the experiments, but the directories may name other code.
            runs = [RunDirectory.open_for(path, self.experiments[path])[0] for path in (Path(one.run) for one in found)]
            if runs:
                self.scores[label] = [score_run(run, metrics, data=data) for run in runs]

    def check(self) -> None:
        """Raise an error that names the failed runs, if any."""
        if not self.failures:
            return
        if len(self.failures) == len(self.experiments):
            raise next(iter(self.failures.values()))
        details = "; ".join(f"{path.name}: {error}" for path, error in self.failures.items())
        raise FedL2GError(f"{len(self.failures)} of {len(self.experiments)} runs failed: {details}")

    @cached_property
    def differences(self) -> list[Difference]:
        """Every method against the reference, in the given order; empty without a reference.

        Read it when all runs are over: it is computed once.
        """
        if self.reference is None or not self.results.get(self.reference):
            return []
        runs: dict[str, dict[int, RunDirectory]] = {}
        for path, label in self.labels.items():
            if path not in self.failures:
                runs.setdefault(label, {})[self.experiments[path].seed] = RunDirectory(path)
        seeds = runs[self.reference].values()
        return against(
            self.reference,
            {label: {seed: run.history() for seed, run in found.items()} for label, found in runs.items()},
            crossed=len(seeds) > 1 and same_clients(run.partition() for run in seeds),
        )

    def verdict_lines(self) -> list[str]:
        """One sentence for every method but the reference, in the given order; or what is missing for verdicts."""
        found = {one.method: one.sentence for one in self.differences}
        over = [label for label, results in self.results.items() if results]
        if found:
            missing = f"against {self.reference}: not compared, they share no seed and client."
            return [found.get(label, f"{label} {missing}") for label in over if label != self.reference]
        if len(over) < 2:
            return []
        if self.reference is None:
            return ["No verdict: add local to --methods, or name one of the methods with --against."]
        return [f"No verdict: no run of {self.reference} ended with a result that another method can be compared with."]

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON values: per method the mean, the standard deviation and every run; the verdicts."""
        return {
            "directory": str(self.directory),
            "against": self.reference,
            "verdicts": [one.to_dict() for one in self.differences],
            "selection": sorted({result.selection for found in self.results.values() for result in found}),
            "methods": {
                label: {
                    **{name: {"mean": mean, "std": std} for name, (mean, std) in aggregate(found).items()},
                    **(
                        {"scores": [scores["overall"] for scores in self.scores[label]]} if label in self.scores else {}
                    ),
                    "runs": [result.to_dict() for result in sorted(found, key=lambda result: result.seed)],
                }
                for label, found in self.results.items()
                if found
            },
            "failed": {path.name: str(error) for path, error in self.failures.items()},
        }

    def write(self) -> Path:
        """Write comparison.json."""
        write_sealed(Folder(self.directory), FILE, self.to_dict())
        return self.directory / FILE

    def finished(self) -> dict[str, list[Path]]:
        """The directories of all runs that did not fail, by method."""
        found: dict[str, list[Path]] = {}
        for path, label in self.labels.items():
            if path not in self.failures:
                found.setdefault(label, []).append(path)
        return found


def _settings(file: Path | None, overrides: Mapping[str, Any]) -> dict[str, Any]:
    if file is None:
        return overlay({}, overrides)
    experiment = Experiment.from_file(file)
    same_method = experiment.method.name == overrides["method"]
    settings = experiment.model_dump(mode="json", exclude_none=True, exclude=None if same_method else {"method"})
    return overlay(settings, overrides)
