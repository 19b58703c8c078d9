"""Executes a run in its directory: restores checkpoints, restarts lost workers, writes the result."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext

from fedl2g.engines.base import OpenEngine, WorkerLost, open_engine
from fedl2g.errors import Diverged, FedL2GError, RunError
from fedl2g.federation import Federation, Observer
from fedl2g.files import quoted
from fedl2g.interrupts import EXIT_CODE, orderly_end
from fedl2g.methods.registry import get_method
from fedl2g.process import one_thread, rare_garbage_collection
from fedl2g.round.record import selected_record
from fedl2g.runs.best import BestModels
from fedl2g.runs.checkpoint import restore_checkpoint
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.observers import Checkpointer, EarlyStop, MetricsWriter, StopOnInterrupt
from fedl2g.runs.result import RunResult, Status, summarize
from fedl2g.setup import Setup

_SCRATCH = "scratch"
_MAX_RESTARTS = 20  # workers that keep dying point to a fault of the machine
_log = logging.getLogger(__name__)


class Interrupted(FedL2GError):
    """The user pressed Ctrl-C; a checkpoint was written."""

    exit_code = EXIT_CODE


@rare_garbage_collection()
@one_thread()  # the server's float sums must not depend on the number of cores
def execute(
    directory: RunDirectory,
    setup: Setup,
    observers: Sequence[Observer],
    open_clients: OpenEngine = open_engine,
    *,
    interruptible: bool = True,
) -> RunResult:
    """Run an experiment from its last checkpoint or from the start; the caller holds the directory's lock."""
    experiment = setup.experiment
    method = get_method(experiment.method.name)
    interrupt = StopOnInterrupt()
    scratch = directory.path / _SCRATCH
    best = BestModels(scratch) if experiment.execution.keep_best else None
    checkpointer = Checkpointer(directory, experiment.execution.checkpoint_every, best)
    all_observers = [
        MetricsWriter(directory),
        EarlyStop(experiment.patience, method.warmup_rounds(experiment.method)),
        checkpointer,
        interrupt,
        *observers,
    ]
    server = method.server(experiment.method, setup.task)
    # Left by a process that was killed.
    directory.folder.remove(_SCRATCH)
    directory.folder.remove_leftovers()
    engine = open_clients(setup, scratch)
    federation = Federation(experiment, server, engine, all_observers)
    status: Status = "finished"
    reason = "no client could be evaluated"
    try:
        with orderly_end(interrupt.message, interrupt.press) if interruptible else nullcontext():
            _run_with_restarts(federation, directory)
        stopped = federation.stop_reason if federation.round < experiment.rounds else None
        if stopped == StopOnInterrupt.REASON:
            raise Interrupted(
                f"interrupted after round {federation.round}; a checkpoint was written; continue with "
                f"`fedl2g resume {quoted(directory.path)}`"
            )
        if stopped is not None:
            status = "stopped early"
    except Diverged as error:
        status, reason = "diverged", str(error)
    finally:
        engine.close()
        directory.folder.remove(_SCRATCH)
    if selected_record(federation.history) is None:
        raise RunError(
            f"{directory.path}: the run ended before its first evaluation and has no result ({reason}); check the "
            "initial networks and the method's settings, then start again with another --out"
        )
    if status == "diverged":
        _log.warning("%s", reason)
    result = summarize(
        federation.history,
        method=experiment.method.name,
        seed=experiment.seed,
        status=status,
        run=str(directory.path),
        warmup_rounds=method.warmup_rounds(experiment.method),
    )
    directory.finish(result)
    return result


def _run_with_restarts(federation: Federation, directory: RunDirectory) -> None:
    lost: WorkerLost | None = None
    for _ in range(_MAX_RESTARTS):
        try:
            if lost is not None:
                federation.engine.revive()
            round = restore_checkpoint(directory.checkpoints, federation)
            if lost is not None:
                _log.warning("%s; its clients were restored; the run continues from round %d", lost, round)
            federation.run()
        except WorkerLost as error:
            lost = error
        else:
            return
    raise RunError(
        f"{directory.path}: workers died {_MAX_RESTARTS} times; see the messages above, then continue with "
        f"`fedl2g resume {quoted(directory.path)}`"
    )
