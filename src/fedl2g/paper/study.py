"""Running the paper's experiments: a folder of cells that can be interrupted, continued and shown at any time."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedl2g.errors import FedL2GError, RunError, SettingError
from fedl2g.files import write_text
from fedl2g.paper.catalog import Cell, PaperExperiment, Scale, plan, scale
from fedl2g.references import references_in, require_trust
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.result import RunResult

if TYPE_CHECKING:
    from fedl2g.experiment import Experiment
    from fedl2g.federation import Observer

_FAILURES = threading.Lock()  # several cells may run at a time, and fail
_log = logging.getLogger(__name__)


@dataclass
class Study:
    """The cells of one scale in one folder. All tables of a scale share them, so equal cells are run once.

    `study.json` keeps what the user chose beside the scale (image files in place of named datasets, settings laid over
    every cell), so that `show` finds the same cells and two choices are never mixed up in one folder.
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
    ) -> Study:
        """The study in a folder: as it was, with new datasets added; a contradiction is an error."""
        study = cls(root / scale_name, scale(scale_name))
        stored = study._stored()
        study.dataset_paths = dict(stored.get("dataset_paths", {}))
        study.settings = dict(stored.get("settings", {}))
        require_trust(references_in(study.settings), study.folder, trust=study.settings == settings)
        for name, path in (dataset_paths or {}).items():
            known = study.dataset_paths.setdefault(name, path)
            if known != path:
                raise SettingError(f"{study.folder} was run with {name}={known}; choose another --out for {path}")
        if settings and settings != study.settings:
            if stored:
                raise SettingError(f"{study.folder} was run with the settings {study.settings}; choose another --out")
            study.settings = dict(settings)
        return study

    def save(self) -> None:
        """Remember the user's choices."""
        self.folder.mkdir(parents=True, exist_ok=True)
        values = {"scale": self.scale.name, "dataset_paths": self.dataset_paths, "settings": self.settings}
        write_text(self.folder / "study.json", json.dumps(values, indent=2))

    def _stored(self) -> dict[str, Any]:
        path = self.folder / "study.json"
        try:
            return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
        except (OSError, ValueError) as error:
            raise RunError(f"{path} cannot be read: {error}") from error

    def cells(self, experiment: PaperExperiment, seeds: int | None = None, only: Iterable[str] = ()) -> list[Cell]:
        """The cells of an experiment."""
        return plan(experiment, self.scale, seeds, only, self.settings)

    def path(self, cell: Cell) -> Path:
        """A cell's run directory."""
        return self.folder / "cells" / cell.folder

    def run_of(self, cell: Cell) -> RunDirectory | None:
        """A cell's run, finished or not; None before it has been started."""
        path = self.path(cell)
        return RunDirectory(path) if (path / "run.json").is_file() else None

    def result(self, cell: Cell) -> RunResult | None:
        """What a cell came to, once it is over."""
        run = self.run_of(cell)
        return run.result() if run is not None else None

    def experiment(self, cell: Cell) -> Experiment:
        """A cell's experiment, with the user's images in place of the named dataset."""
        from fedl2g.experiment import Experiment, overlay
        from fedl2g.runs.estimate import data_size

        settings = dict(cell.settings)
        name = str(settings["dataset"])
        if name in self.dataset_paths:
            settings["dataset"] = str(Path(self.dataset_paths[name]).expanduser().resolve())
        most = self.scale.most_samples
        if most is not None and "samples" not in settings and data_size(settings["dataset"]).images > most:
            settings["samples"] = most
        return Experiment(**overlay({}, {**settings, "seed": cell.seed}))

    def failures(self) -> dict[str, str]:
        """Why cells could not be run, by folder."""
        path = self.folder / "failures.json"
        try:
            return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
        except (OSError, ValueError):
            return {}

    def note_failure(self, cell: Cell, reason: str | None) -> None:
        """Remember, or forget, why a cell could not be run."""
        with _FAILURES:
            known = self.failures()
            if reason is None and cell.folder not in known:
                return
            known.pop(cell.folder, None)
            if reason is not None:
                known[cell.folder] = reason
            write_text(self.folder / "failures.json", json.dumps(known, indent=2))


@dataclass(frozen=True)
class Outcome:
    """What became of a cell."""

    cell: Cell
    result: RunResult | None = None
    reason: str | None = None  # why it could not be run


def run_cells(
    study: Study, cells: Iterable[Cell], *, jobs: int = 1, watch: Callable[[Cell], list[Observer]] | None = None
) -> Iterator[Outcome]:
    """Run cells that are not over yet; one that cannot be run is noted and the rest goes on.

    With one job the cells run here, watched; with more, each in a process of its own.
    """
    study.save()
    distinct = {cell.folder: cell for cell in cells}
    layouts = _layouts(study, distinct.values())
    waiting = {folder: cell for folder, cell in distinct.items() if study.result(cell) is None}
    if jobs == 1:
        for cell in waiting.values():
            yield _run_cell(study, cell, layouts, 1, watch)
        return
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(_run_cell, study, cell, layouts, 2, None) for cell in waiting.values()]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _layouts(study: Study, cells: Iterable[Cell]) -> dict[Path, str]:
    """What stands for `auto` in each cell: settled for all before the first is run, so that methods are comparable."""
    if study.settings.get("layout") != "auto":
        return {}
    from fedl2g.runs.batch import settle_layouts

    experiments = {}
    for cell in cells:
        with suppress(SettingError):  # the run will meet the same error, and note it
            experiments[study.path(cell)] = study.experiment(cell)
    return {path: experiment.layout for path, experiment in settle_layouts(experiments).items()}


def _run_cell(
    study: Study, cell: Cell, layouts: Mapping[Path, str], jobs: int, watch: Callable[[Cell], list[Observer]] | None
) -> Outcome:
    from fedl2g.runs.batch import run_all
    from fedl2g.runs.execute import Interrupted

    path = study.path(cell)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        experiment = study.experiment(cell).settled(layouts.get(path, "auto"))
        observers = (lambda _: watch(cell)) if watch is not None else None
        ((_, result),) = run_all({path: experiment}, jobs=jobs, watch=observers)
    except Interrupted:
        raise
    except FedL2GError as error:
        _log.warning("%s in %s (seed %d) could not be run: %s", cell.method, cell.column, cell.seed, error)
        study.note_failure(cell, str(error))
        return Outcome(cell, reason=str(error))
    study.note_failure(cell, None)
    return Outcome(cell, result)


class Pace:
    """How long the remaining cells will take, corrected by how long the finished ones took."""

    def __init__(self, estimates: Mapping[str, float], jobs: int) -> None:
        self.estimates = dict(estimates)
        self.jobs = jobs
        self.started = time.monotonic()
        self.done = 0.0

    def finish(self, cell: Cell) -> float:
        """Take a finished cell in; the seconds that are left."""
        self.done += self.estimates.pop(cell.folder, 0.0)
        left = sum(self.estimates.values())
        return left * (time.monotonic() - self.started) / self.done if self.done else left / self.jobs
