"""Running an experiment in a directory of its own, from the start or from wherever it was interrupted."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedl2g.data import Dataset
from fedl2g.engines.base import OpenEngine
from fedl2g.errors import RunError, SettingError
from fedl2g.experiment import Experiment
from fedl2g.federation import Observer
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.execute import execute
from fedl2g.runs.result import RunResult
from fedl2g.setup import Progress, Setup, load_data, prepare

_ENDING = 60.0  # seconds a server needs to end once it has given its SuperLink up


def run(
    experiment: Experiment,
    out: Path | str | None = None,
    observers: Sequence[Observer] = (),
    *,
    data: Dataset | None = None,
    progress: Progress | None = None,
) -> RunResult:
    """Run an experiment and return its result.

    The run directory is `out`, or one named after the experiment below `runs/`. A directory that holds the same
    experiment already is continued, or its result returned if it is over. `data` is the experiment's dataset where it
    is loaded already; otherwise `progress` is told how far it is loaded.
    """
    path = Path(out) if out is not None else default_directory(experiment)
    if (path / "run.json").is_file():
        return _continue(*RunDirectory.open_own(path, experiment), observers, data, progress)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RunError(f"{path} exists and is not a run directory; choose another --out")
    setup = prepare(experiment, progress, data)
    setup.check()
    directory = RunDirectory.create(path, setup)
    try:
        with directory.lock():
            return execute(directory, setup, observers)
    except SettingError:
        if not directory.history():  # a client could not even be built: leave nothing half-written
            shutil.rmtree(path)
        raise


def run_site(setup: Setup, path: Path, open_clients: OpenEngine, observers: Sequence[Observer] = ()) -> RunResult:
    """Run, or continue, an experiment whose clients live elsewhere: the caller says what is known of them and how they
    are reached."""
    if (path / "run.json").is_file():
        directory, _ = RunDirectory.open_own(path, setup.experiment)
    else:
        directory = RunDirectory.create(path, setup)
    # A server whose SuperLink was killed holds the directory until it has given up.
    with directory.lock(wait=setup.experiment.execution.link_seconds + _ENDING):
        return directory.result() or execute(directory, setup, observers, open_clients, interruptible=False)


def resume(
    path: Path | str,
    observers: Sequence[Observer] = (),
    *,
    execution: Mapping[str, object] | None = None,
    trust: bool = False,
    progress: Progress | None = None,
) -> RunResult:
    """Continue a run from its last checkpoint to the same numbers as if it had never stopped.

    A run whose method, models or data are Python code names them in its own file: they are imported if you `trust` it.
    """
    directory = RunDirectory.open(Path(path), trust=trust)
    if directory.deployed and directory.result() is None:
        raise SettingError(f"{path} is the run of a deployment: `flwr run` (coordinator/run.sh) goes on with it")
    experiment = directory.experiment()
    if experiment.fingerprint != directory.about()["fingerprint"]:
        why, remedy = "experiment.toml and run.json are not of the same run", "restore them from a copy"
        if experiment.layout == "preset":
            why += ", or a version of fedl2g with other layouts in `preset` began it"
            remedy += ", or resume it with that version"
        raise RunError(f"{path}: {why}; {remedy}")
    if execution:
        experiment = Experiment(**{**dict(experiment), "execution": {**dict(experiment.execution), **execution}})
    return _continue(directory, experiment, observers, progress=progress)


def default_directory(experiment: Experiment) -> Path:
    """runs/<data>-<method>-s<seed>-<start of the fingerprint>."""
    data, method = Path(experiment.dataset).stem, experiment.method.name
    name = f"{data}-{method}-s{experiment.seed}-{experiment.fingerprint[:8]}"
    return Path("runs") / name.replace(":", "-")  # of code that the user names


def _continue(
    directory: RunDirectory,
    experiment: Experiment,
    observers: Sequence[Observer],
    data: Dataset | None = None,
    progress: Progress | None = None,
) -> RunResult:
    with directory.lock():
        result = directory.result()
        if result is not None:
            return result
        dataset = load_data(experiment, progress) if data is None else data
        if dataset.fingerprint != directory.about()["dataset_fingerprint"]:
            raise RunError(f"the dataset {experiment.dataset!r} is not the one {directory.path} was started with")
        return execute(directory, Setup(experiment, dataset, directory.partition()), observers)
