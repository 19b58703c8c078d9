"""Starts and resumes experiments in run directories."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedl2g.datasets import Dataset
from fedl2g.engines.base import OpenEngine
from fedl2g.errors import RunError, SettingError
from fedl2g.experiment import Experiment
from fedl2g.experiment.extension import check_extension
from fedl2g.federation import Observer
from fedl2g.runs.deployed import how_to_continue
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.execute import execute
from fedl2g.runs.extension import extend
from fedl2g.runs.layout import is_run
from fedl2g.runs.result import RunResult
from fedl2g.setup import Progress, Setup, load_data, prepare

_SHUTDOWN_SECONDS = 60.0  # for a server to exit after it has given up on its SuperLink


def run(
    experiment: Experiment,
    out: Path | str | None = None,
    observers: Sequence[Observer] = (),
    *,
    data: Dataset | None = None,
    progress: Progress | None = None,
) -> RunResult:
    """Run an experiment and return its result.

    The run directory is `out`, or one named after the experiment below `runs/`. If it already holds this experiment,
    the run is continued, or its result returned if it is finished; if it holds this experiment with fewer rounds, it is
    extended. `data` is the experiment's dataset if it is already loaded; otherwise `progress` is called while it is
    being loaded.
    """
    path = Path(out) if out is not None else default_directory(experiment)
    if is_run(path):
        return _continue(*RunDirectory.open_for(path, experiment), observers, data, progress)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RunError(f"{path}: exists and is not a run directory; choose another --out")
    setup = prepare(experiment, progress, data)
    setup.check()
    directory = RunDirectory.create(path, setup)
    try:
        with directory.lock():
            return execute(directory, setup, observers)
    except SettingError:
        if not directory.history():  # failed before the first round: remove the empty run
            shutil.rmtree(path)
        raise


def run_site(setup: Setup, path: Path, open_clients: OpenEngine, observers: Sequence[Observer] = ()) -> RunResult:
    """Run or continue an experiment whose clients are remote; `open_clients` makes the engine that reaches them."""
    if is_run(path):
        directory, experiment = RunDirectory.open_for(path, setup.experiment)
        setup = replace(setup, experiment=experiment)
    else:
        directory = RunDirectory.create(path, setup)
    # A server whose SuperLink was killed keeps the lock until its retries time out.
    with directory.lock(wait=setup.experiment.execution.link_seconds + _SHUTDOWN_SECONDS):
        if setup.experiment.privacy.on:
            directory.check_noise_key()
        extend(directory, setup.experiment)
        return directory.result() or execute(directory, setup, observers, open_clients, interruptible=False)


def resume(
    path: Path | str,
    observers: Sequence[Observer] = (),
    *,
    rounds: int | None = None,
    execution: Mapping[str, object] | None = None,
    trust: bool = False,
    progress: Progress | None = None,
) -> RunResult:
    """Continue a run from its last checkpoint; the numbers are those of an uninterrupted run.

    With more `rounds` than it has, a run is extended, also a finished one; the numbers are those of a run started with
    them. Python code that the run's own file names (its method, models or data) is only imported with `trust`.
    """
    directory = RunDirectory.open(Path(path), trust=trust)
    if directory.deployed and (directory.result() is None or rounds is not None):
        raise SettingError(f"{path}: the run of a deployment; {how_to_continue(directory.path)}")
    experiment = directory.experiment()
    if experiment.fingerprint != directory.about()["fingerprint"]:
        why, remedy = "experiment.toml and run.json belong to different runs", "restore them from a copy"
        if experiment.layout == "preset":
            why += ", or another version of fedl2g, with other layouts in `preset`, started it"
            remedy += ", or resume it with that version"
        raise RunError(f"{path}: {why}; {remedy}")
    if rounds is not None:
        experiment = experiment.with_rounds(rounds)
        check_extension(directory.path, directory.about(), experiment)
    if execution:
        experiment = Experiment(**{**dict(experiment), "execution": {**dict(experiment.execution), **execution}})
    return _continue(directory, experiment, observers, progress=progress)


def default_directory(experiment: Experiment) -> Path:
    """runs/<data>-<method>-s<seed>-<start of the fingerprint>."""
    data, method = Path(experiment.dataset).stem, experiment.method.name
    name = f"{data}-{method}-s{experiment.seed}-{experiment.fingerprint[:8]}"
    return Path("runs") / name.replace(":", "-")  # a reference contains a colon


def _continue(
    directory: RunDirectory,
    experiment: Experiment,
    observers: Sequence[Observer],
    data: Dataset | None = None,
    progress: Progress | None = None,
) -> RunResult:
    with directory.lock():
        result = directory.result()
        if result is not None and directory.about()["rounds"] == experiment.rounds:
            return result
        dataset = load_data(experiment, progress) if data is None else data
        if dataset.fingerprint != directory.about()["dataset_fingerprint"]:
            raise RunError(
                f"dataset: {experiment.dataset!r} is not the one {directory.path} was started with; restore that "
                "dataset, or choose another --out"
            )
        if experiment.privacy.on:
            directory.check_noise_key()
        extend(directory, experiment)
        return execute(directory, Setup(experiment, dataset, directory.partition(len(dataset.labels))), observers)
