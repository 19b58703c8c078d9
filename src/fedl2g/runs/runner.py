"""Running an experiment in a directory of its own, from the start or from wherever it was interrupted."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedl2g.data import Dataset, load_dataset, make_partition
from fedl2g.engines import Engine, WorkerLost, open_engine
from fedl2g.engines.host import Site, resolve_device
from fedl2g.errors import Diverged, FedL2GError, RunError, SettingError
from fedl2g.experiment import Experiment
from fedl2g.federation import Federation, Observer
from fedl2g.methods.registry import get_method
from fedl2g.models.catalog import is_factory
from fedl2g.process import one_thread, rare_garbage_collection
from fedl2g.round.record import best_record
from fedl2g.runs.checkpoint import restore_checkpoint
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.observers import Checkpointer, EarlyStop, MetricsWriter, StopOnInterrupt
from fedl2g.runs.result import RunResult, Status, summarise

_ENDING = 60.0  # seconds a server needs to end once it has given its SuperLink up
_REVIVALS = 20  # a worker that dies again and again is a fault of the machine, not bad luck
_log = logging.getLogger(__name__)


class Interrupted(FedL2GError):
    """The user pressed Ctrl-C; a checkpoint was written."""

    exit_code = 130


def run(experiment: Experiment, out: Path | str | None = None, observers: Sequence[Observer] = ()) -> RunResult:
    """Run an experiment and return its result.

    The run directory is `out`, or one named after the experiment below `runs/`. A directory that holds the same
    experiment already is continued, or its result returned if it is over.
    """
    path = Path(out) if out is not None else default_directory(experiment)
    if (path / "run.json").is_file():
        return _continue(RunDirectory.open(path), experiment, observers)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RunError(f"{path} exists and is not a run directory; choose another --out")
    dataset = load_data(experiment)
    partition = make_partition(
        experiment.partition,
        dataset.labels,
        dataset.domains,
        clients=experiment.clients,
        classes=dataset.classes,
        seed=experiment.seed,
        test_fraction=experiment.test_fraction,
    )
    experiment = settle_layout(experiment, dataset)
    site = Site(experiment, dataset, partition)
    site.check()
    directory = RunDirectory.create(path, experiment, dataset, partition)
    try:
        with directory.lock():
            return _execute(directory, site, observers)
    except SettingError:
        if not directory.history():  # a client could not even be built: leave nothing half-written
            shutil.rmtree(path)
        raise


def run_site(
    site: Site, path: Path, open_clients: Callable[[Site], Engine], observers: Sequence[Observer] = ()
) -> RunResult:
    """Run, or continue, an experiment whose clients live elsewhere: the caller says what is known of them and how they
    are reached."""
    if (path / "run.json").is_file():
        directory = RunDirectory.open(path)
        if directory.about()["fingerprint"] != site.experiment.fingerprint:
            raise RunError(f"{path} holds another experiment; choose another directory")
    else:
        directory = RunDirectory.create(path, site.experiment, site.dataset, site.partition)
    # A server whose SuperLink was killed holds the directory until it has given up.
    with directory.lock(wait=site.experiment.execution.link_seconds + _ENDING):
        return directory.result() or _execute(directory, site, observers, open_clients, interruptible=False)


def resume(
    path: Path | str,
    observers: Sequence[Observer] = (),
    *,
    execution: Mapping[str, object] | None = None,
    trust: bool = False,
) -> RunResult:
    """Continue a run from its last checkpoint to the same numbers as if it had never stopped.

    A run whose models or data are Python functions names them in its own file: they are imported if you `trust` it.
    """
    directory = RunDirectory.open(Path(path))
    if directory.deployed and directory.result() is None:
        raise SettingError(f"{path} is the run of a deployment: `flwr run` (coordinator/run.sh) goes on with it")
    experiment = directory.experiment()
    if not trust and (code := named_code(experiment)):
        raise SettingError(
            f"{path} names code to import ({', '.join(code)}); if it is your own run, or you trust who made it, resume "
            "it with --trust"
        )
    if execution:
        experiment = Experiment(**{**dict(experiment), "execution": {**dict(experiment.execution), **execution}})
    return _continue(directory, experiment, observers)


def named_code(experiment: Experiment) -> list[str]:
    """The Python functions that an experiment names, as models or as its dataset."""
    functions = [name for name in experiment.architectures if is_factory(name)]
    return functions + ([experiment.dataset] if is_factory(experiment.dataset) else [])


def default_directory(experiment: Experiment) -> Path:
    """runs/<data>-<method>-s<seed>-<start of the fingerprint>."""
    data = Path(experiment.dataset).stem.replace(":", "-")
    return Path("runs") / f"{data}-{experiment.method.name}-s{experiment.seed}-{experiment.fingerprint[:8]}"


def settle_layout(experiment: Experiment, dataset: Dataset) -> Experiment:
    """Put the layouts that are faster on this machine in place of `auto`: they are part of what gives the numbers."""
    if experiment.layout != "auto":
        return experiment
    if resolve_device(experiment.device).type != "cpu":
        raise SettingError(
            f"layout: auto is measured on the CPU, which says nothing of the device {experiment.device!r}; choose "
            "preset, contiguous or channels_last"
        )
    from fedl2g.models.calibration import faster_layout

    layouts = {
        name: faster_layout(
            name, classes=dataset.classes, image_shape=dataset.image_shape, batch_size=experiment.batch_size
        )
        for name in dict.fromkeys(experiment.architectures)
    }
    return experiment.settled(",".join(f"{name}={layout}" for name, layout in layouts.items()))


def _continue(directory: RunDirectory, experiment: Experiment, observers: Sequence[Observer]) -> RunResult:
    about = directory.about()
    if experiment.layout == "auto":  # was settled when the run was started
        experiment = experiment.settled(directory.experiment().layout)
    if about["fingerprint"] != experiment.fingerprint:
        raise RunError(
            f"{directory.path} holds another experiment ({about['method']}, seed {about['seed']}); choose another --out"
        )
    with directory.lock():
        result = directory.result()
        if result is not None:
            return result
        dataset = load_data(experiment)
        if dataset.fingerprint != about["dataset_fingerprint"]:
            raise RunError(f"the dataset {experiment.dataset!r} is not the one {directory.path} was started with")
        return _execute(directory, Site(experiment, dataset, directory.partition()), observers)


def load_data(experiment: Experiment) -> Dataset:
    """The dataset of an experiment."""
    return load_dataset(experiment.dataset, samples=experiment.samples, image_size=experiment.image_size)


@rare_garbage_collection()
@one_thread()  # the server's sums, too, must not depend on how many cores a machine has
def _execute(
    directory: RunDirectory,
    site: Site,
    observers: Sequence[Observer],
    open_clients: Callable[[Site], Engine] = open_engine,
    *,
    interruptible: bool = True,
) -> RunResult:
    experiment = site.experiment
    interrupt = StopOnInterrupt()
    checkpointer = Checkpointer(directory, experiment.execution.checkpoint_every)
    watching = [
        MetricsWriter(directory),
        EarlyStop(experiment.patience),
        checkpointer,
        *([interrupt] if interruptible else []),
        *observers,
    ]
    server = get_method(experiment.method.name).server(experiment.method, site.task)
    scratch = directory.path / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)  # of a process that was killed
    engine = open_clients(replace(site, scratch=scratch))
    federation = Federation(experiment, server, engine, watching)
    status: Status = "finished"
    reason = "no client could be evaluated"
    try:
        _run_to_the_end(federation, directory)
        stopped = federation.stop_reason if federation.round < experiment.rounds else None
        if stopped == StopOnInterrupt.REASON:
            raise Interrupted(
                f"interrupted after round {federation.round}; a checkpoint was written, continue with "
                f"`fedl2g resume {directory.path}`"
            )
        if stopped is not None:
            status = "stopped early"
    except Diverged as error:
        status, reason = "diverged", str(error)
    finally:
        interrupt.close()
        engine.close()
        shutil.rmtree(scratch, ignore_errors=True)
    if best_record(federation.history) is None:
        raise RunError(
            f"the run in {directory.path} ended before its first evaluation and has no result: {reason}; look at the "
            "initial networks and at the method's settings, then start again with another --out"
        )
    if status == "diverged":
        _log.warning("%s", reason)
    result = summarise(
        federation.history,
        method=experiment.method.name,
        seed=experiment.seed,
        status=status,
        run=str(directory.path),
    )
    directory.finish(result)
    return result


def _run_to_the_end(federation: Federation, directory: RunDirectory) -> None:
    lost: WorkerLost | None = None
    for _ in range(_REVIVALS):
        try:
            if lost is not None:
                federation.engine.revive()
            round = restore_checkpoint(directory.checkpoints, federation)
            if lost is not None:
                _log.warning("%s; its clients were restored, the run goes on from round %d", lost, round)
            federation.run()
        except WorkerLost as error:
            lost = error
        else:
            return
    raise RunError(f"workers died {_REVIVALS} times; see the messages above, then `fedl2g resume {directory.path}`")
