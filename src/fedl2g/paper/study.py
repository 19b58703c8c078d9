"""Runs the paper's experiments as a resumable folder of cells."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from fedl2g.errors import DataError, FedL2GError, RunError, SettingError
from fedl2g.files import reason_of
from fedl2g.folder import Folder
from fedl2g.interrupts import orderly_end
from fedl2g.paper.catalog import Cell, PaperExperiment, Scale, plan, scale
from fedl2g.references import references_in, require_trust
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.layout import is_run
from fedl2g.runs.plan import PlannedRun, note_failure, read_failures, write_plan
from fedl2g.runs.result import RunResult
from fedl2g.seals import read_sealed, write_sealed

if TYPE_CHECKING:
    from fedl2g.experiment import Experiment
    from fedl2g.federation import Observer

_FILE = "study.json"


@dataclass
class Study:
    """The cells of one scale in one folder. All tables of a scale share them, so equal cells run once.

    `study.json` stores the user's choices (files for named datasets, settings overridden in every cell), so that `show`
    finds the same cells and different choices are never mixed in one folder.
    """

    folder: Path
    scale: Scale
    dataset_paths: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        root: Path,
        scale_name: str,
        dataset_paths: Mapping[str, str] | None = None,
        settings: Mapping[str, Any] | None = None,
        *,
        trust: bool = False,
    ) -> Study:
        """Open the study in a folder and add new datasets; SettingError if the choices contradict the stored ones.

        Code that the stored choices name is refused, unless the user names it too, or trusts the folder.
        """
        study = cls(root / scale_name, scale(scale_name))
        Folder(root).is_folder(scale_name)  # a link is refused
        stored = study._stored()
        study.dataset_paths = dict(stored.get("dataset_paths", {}))
        study.settings = dict(stored.get("settings", {}))
        require_trust(references_in(study.settings), study.folder, trust=trust or study.settings == settings)
        for name, path in (dataset_paths or {}).items():
            known = study.dataset_paths.setdefault(name, path)
            if known != path:
                raise SettingError(f"{study.folder}: was run with {name}={known}; choose another --out for {path}")
        if settings and settings != study.settings:
            if stored:
                raise SettingError(f"{study.folder}: was run with the settings {study.settings}; choose another --out")
            study.settings = dict(settings)
        return study

    def save(self) -> None:
        """Write the user's choices to study.json."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingError(
                f"--out: {self.folder} cannot be written ({reason_of(error)}); choose another folder"
            ) from error
        values = {"scale": self.scale.name, "dataset_paths": self.dataset_paths, "settings": self.settings}
        write_sealed(Folder(self.folder), _FILE, values)

    def _stored(self) -> dict[str, Any]:
        if Folder(self.folder).status(_FILE) is None:
            return {}
        found = read_sealed(Folder(self.folder), _FILE)
        for name in ("dataset_paths", "settings"):
            if not isinstance(found.get(name), dict):
                raise RunError(f"{self.folder / _FILE}: {name!r} is missing or not a table; restore it from a copy")
        return found

    def cells(self, experiment: PaperExperiment, seeds: int | None = None, only: Iterable[str] = ()) -> list[Cell]:
        """The cells of an experiment."""
        return plan(experiment, self.scale, seeds, only, self.settings)

    def path(self, cell: Cell) -> Path:
        """A cell's run directory."""
        return self.folder / "cells" / cell.folder

    def run_of(self, cell: Cell) -> RunDirectory | None:
        """A cell's run, finished or not; None before it has been started."""
        path = self.path(cell)
        Folder(self.folder).is_folder(f"cells/{cell.folder}")  # a link is refused
        return RunDirectory(path) if is_run(path) else None

    def result(self, cell: Cell) -> RunResult | None:
        """The result of a cell; None until it is finished."""
        run = self.run_of(cell)
        return run.result() if run is not None else None

    def experiment(self, cell: Cell) -> Experiment:
        """A cell's experiment, with the user's file instead of the named dataset."""
        from fedl2g.experiment import Experiment, overlay
        from fedl2g.runs.estimate import data_size

        settings = dict(cell.settings)
        name = str(settings["dataset"])
        if name in self.dataset_paths:
            settings["dataset"] = str(Path(self.dataset_paths[name]).expanduser().resolve())
        most = self.scale.most_samples
        if most is not None and "samples" not in settings and data_size(settings["dataset"]).samples > most:
            settings["samples"] = most
        return Experiment(**overlay({}, {**settings, "seed": cell.seed}))

    def failures(self) -> dict[str, str]:
        """The errors of failed cells, by folder."""
        return read_failures(self.folder)

    def note_failure(self, cell: Cell, reason: str | None) -> None:
        """Store the error of a failed cell, or remove it with None."""
        note_failure(self.folder, cell.folder, reason)

    def write_plan(self, cells: Iterable[Cell]) -> None:
        """Write which cells are to be run; a cell that several columns share is listed for each of them."""
        from fedl2g.experiment import default_settings

        self.save()
        usual = default_settings()["rounds"]
        write_plan(
            self.folder,
            [
                PlannedRun(
                    f"cells/{cell.folder}", cell.method, cell.seed, int(cell.settings.get("rounds", usual)), cell.column
                )
                for cell in cells
            ],
        )


@dataclass(frozen=True)
class Outcome:
    """The outcome of a cell: a result, or the reason of its failure."""

    cell: Cell
    result: RunResult | None = None
    reason: str | None = None


class _Datasets:
    """The data of the cells, asked for once: what cannot be downloaded is not tried again for every cell."""

    def __init__(self) -> None:
        self._wrong: dict[tuple[object, ...], str | None] = {}
        self._lock = Lock()

    def require(self, experiment: Experiment) -> None:
        """Raise DataError if the experiment's data cannot be had; downloads them if need be."""
        from fedl2g.setup import load_data

        key = (experiment.dataset, experiment.samples, experiment.image_size)
        with self._lock:
            if key not in self._wrong:
                self._wrong[key] = None
                try:
                    load_data(experiment)
                except FedL2GError as error:
                    self._wrong[key] = str(error)
            wrong = self._wrong[key]
        if wrong is not None:
            raise DataError(wrong)


def run_cells(
    study: Study, cells: Iterable[Cell], *, jobs: int = 1, watch: Callable[[Cell], list[Observer]] | None = None
) -> Iterator[Outcome]:
    """Run the unfinished cells; failures are recorded, and the remaining cells still run.

    With one job the cells run in this process, with the observers of `watch`; with more, each in a subprocess.
    """
    from fedl2g.runs.batch import STOPPING

    study.save()
    distinct = {cell.folder: cell for cell in cells}
    datasets = _Datasets()
    layouts = _layouts(study, distinct.values(), datasets)
    pending = {folder: cell for folder, cell in distinct.items() if study.result(cell) is None}
    if jobs == 1:
        for cell in pending.values():
            yield _run_cell(study, cell, layouts, datasets, 1, watch)
        return
    with orderly_end(lambda: STOPPING, lambda: None), ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(_run_cell, study, cell, layouts, datasets, 2, None) for cell in pending.values()]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _layouts(study: Study, cells: Iterable[Cell], datasets: _Datasets) -> dict[Path, str]:
    """The layout of each cell with `auto`, resolved before the first run, so that methods are comparable."""
    if study.settings.get("layout") != "auto":
        return {}
    from fedl2g.runs.batch import settle_layouts

    experiments = {}
    for cell in cells:
        with suppress(FedL2GError):  # the run will raise and record the same error
            experiment = study.experiment(cell)
            datasets.require(experiment)
            experiments[study.path(cell)] = experiment
    return {path: experiment.layout for path, experiment in settle_layouts(experiments).items()}


def _run_cell(
    study: Study,
    cell: Cell,
    layouts: Mapping[Path, str],
    datasets: _Datasets,
    jobs: int,
    watch: Callable[[Cell], list[Observer]] | None,
) -> Outcome:
    from fedl2g.runs.batch import GO_ON, run_all
    from fedl2g.runs.execute import Interrupted

    path = study.path(cell)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        experiment = study.experiment(cell).settled(layouts.get(path, "auto"))
        datasets.require(experiment)
        observers = (lambda _: watch(cell)) if watch is not None else None
        ((_, result),) = run_all({path: experiment}, jobs=jobs, watch=observers)
    except Interrupted as error:
        raise Interrupted(GO_ON) from error
    except FedL2GError as error:
        study.note_failure(cell, str(error))
        return Outcome(cell, reason=str(error))
    study.note_failure(cell, None)
    return Outcome(cell, result)


class Pace:
    """Estimates the remaining time, corrected by the time of the finished cells."""

    def __init__(self, estimates: Mapping[str, float], jobs: int) -> None:
        self.estimates = dict(estimates)
        self.jobs = jobs
        self.started = time.monotonic()
        self.done = 0.0

    def finish(self, cell: Cell) -> float:
        """Account for a finished cell; returns the estimated seconds left."""
        self.done += self.estimates.pop(cell.folder, 0.0)
        left = sum(self.estimates.values())
        return left * (time.monotonic() - self.started) / self.done if self.done else left / self.jobs
