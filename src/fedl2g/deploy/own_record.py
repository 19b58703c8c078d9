"""A site's own record of a run: its loss and accuracy round by round, in a run directory in its store.

It is written for the site alone, beside its models: `fedl2g watch site.toml` and `fedl2g show` read it. Nothing of it
is sent to the coordinator. If it cannot be written, the site's log says so and the site goes on.
"""

from __future__ import annotations

import atexit
import dataclasses
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np

from fedl2g.datasets import Partition
from fedl2g.deploy.site_file import SiteFile
from fedl2g.engines.base import Evaluation
from fedl2g.engines.flower.messages import Request
from fedl2g.errors import FedL2GError
from fedl2g.experiment import Experiment
from fedl2g.experiment.identity import SITES
from fedl2g.methods.base import Reply
from fedl2g.methods.registry import get_method
from fedl2g.payload import nbytes
from fedl2g.round.evaluation import pooled_accuracy
from fedl2g.round.record import RoundRecord, selected_record
from fedl2g.runs.deployed import SiteRecord, write_sites
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.layout import is_run
from fedl2g.runs.result import summarize
from fedl2g.setup import Setup

OWN, ALONE = "own", "alone"
"""The folders of the site's record and of its local baseline."""
_LOG = "log.txt"
_log = logging.getLogger(__name__)


class OwnRecord:
    """The record of one run at one site, in `folder`."""

    def __init__(self, folder: Path, file: SiteFile, setup: Setup) -> None:
        self.file = file
        self.client = file.client_id
        self.directory = RunDirectory(folder / OWN, trusted=True)
        self.alone = RunDirectory(folder / ALONE, trusted=True)
        if not is_run(self.directory.path):
            create_record(self.directory.path, file, setup, setup.experiment)

    def trained(self, request: Request, reply: Reply) -> None:
        """The site has trained in a round."""
        report = reply.report
        self.directory.append(
            RoundRecord(
                request.round,
                [self.client],
                loss=report.loss,
                client_losses={} if report.loss is None else {self.client: report.loss},
                up_bytes=nbytes(reply.payload),
                down_bytes=nbytes(request.payload),
                client_seconds=report.seconds,
                replied=1,
            )
        )
        loss = "no loss" if report.loss is None else f"loss {report.loss:.4f}"
        self._say(f"round {request.round}: trained on {report.samples} samples in {report.seconds:.1f} s, {loss}")

    def evaluated(self, request: Request, evaluation: Evaluation) -> None:
        """The site has tested its network after a round."""
        before = {record.round: record for record in self.directory.history()}
        record = before.get(request.round) or RoundRecord(request.round)
        record.accuracy = pooled_accuracy([evaluation], {})
        self.directory.append(record)
        self._say(
            f"round {request.round}: accuracy {evaluation.correct / evaluation.samples:.2%} ({evaluation.correct} of "
            f"{evaluation.samples} test samples){self._beside(request.round, record)}"
        )

    def ended(self, request: Request) -> None:
        """The run is over."""
        history, experiment = self.directory.history(), request.experiment
        own = selected_record(history)
        if own is None or own.accuracy is None:
            return
        result = summarize(
            history,
            method=experiment.method.name,
            seed=experiment.seed,
            status="finished" if history[-1].round == experiment.rounds else "stopped early",
            run=str(self.directory.path),
            warmup_rounds=get_method(experiment.method.name).warmup_rounds(experiment.method),
        )
        self.directory.finish(result)
        self._say(f"the run is over: best accuracy {own.accuracy.pooled:.2%} in round {own.round}")
        if self.file.local_baseline and self.alone.result() is None:
            self._say("the local baseline is not finished; what the federation brought is logged here when it is")
        elif self.file.local_baseline:
            log_gain(self.directory, self.alone)

    def _beside(self, round: int, record: RoundRecord) -> str:
        """What the local baseline reached in the same round."""
        if not self.file.local_baseline:
            return ""
        baseline = {r.round: r for r in self.alone.history()}.get(round)
        if baseline is None or baseline.accuracy is None or record.accuracy is None:
            return "; alone: this round is not computed yet"
        gain = record.accuracy.pooled - baseline.accuracy.pooled
        return f"; alone {baseline.accuracy.pooled:.2%}: federation {points(gain)}"

    def _say(self, text: str) -> None:
        _say(self.directory, text)


class _TakingPart:
    """Locks the record of the run in which this process takes part: `watch` and `list` then show it as running."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._lock = ExitStack()

    def begin(self, directory: RunDirectory) -> None:
        """Lock the record of this run, and of no other."""
        if self._path != directory.path:
            self.end()
            with suppress(FedL2GError):  # a record is written without its lock too
                self._lock.enter_context(directory.lock())
            self._path = directory.path

    def end(self) -> None:
        """The run is over."""
        self._lock.close()
        self._path = None


_taking_part = _TakingPart()
atexit.register(_taking_part.end)


def log_gain(own: RunDirectory, alone: RunDirectory) -> None:
    """Log what the federation brought this site once both are over; the run and the baseline both call this."""
    federated, local = (selected_record(run.history()) if run.result() is not None else None for run in (own, alone))
    if federated is None or local is None or federated.accuracy is None or local.accuracy is None:
        return
    gain = federated.accuracy.pooled - local.accuracy.pooled
    _say(
        own,
        f"with the federation {federated.accuracy.pooled:.2%} (round {federated.round}), alone "
        f"{local.accuracy.pooled:.2%} (round {local.round}): the federation brought {points(gain)}",
    )


def _say(directory: RunDirectory, text: str) -> None:
    _log.info("%s", text)
    try:
        with directory.folder.appending(_LOG) as log:
            log.write(f"{_now()} {text}\n".encode())
    except OSError as error:
        _log.warning("%s: cannot be written (%s)", directory.path / _LOG, error.strerror)


def points(difference: float) -> str:
    """A difference of accuracies in percentage points, with its sign."""
    return f"{100 * difference:+.2f} points"


def create_record(path: Path, file: SiteFile, setup: Setup, experiment: Experiment) -> RunDirectory:
    """A run directory for records of this site alone, without samples and without numbers of other sites."""
    nothing = tuple(np.empty(0, dtype=np.int64) for _ in range(experiment.clients))
    dataset = dataclasses.replace(setup.dataset, fingerprint=SITES)
    directory = RunDirectory.create(path, Setup(experiment, dataset, Partition(nothing, nothing)))
    own = setup.partition
    record = SiteRecord(file.name, file.model, len(own.train[file.client_id]), len(own.test[file.client_id]))
    write_sites(path, {file.client_id: record})
    return directory


def record_request(file: SiteFile, request: Request, setup: Setup) -> None:
    """Show the run as running from the moment this process works for it; never fails."""
    with _warned():
        _taking_part.begin(OwnRecord(file.path(file.store) / request.run, file, setup).directory)


def record_answer(file: SiteFile, request: Request, setup: Setup, answer: Reply | Evaluation | None) -> None:
    """Record an answer to the coordinator (None: the run is over); never fails."""
    with _warned():
        record = OwnRecord(file.path(file.store) / request.run, file, setup)
        match answer:
            case Reply():
                record.trained(request, answer)
            case Evaluation():
                record.evaluated(request, answer)
            case None:
                _taking_part.end()
                record.ended(request)


@contextmanager
def _warned() -> Iterator[None]:
    """Log a failure to write the record, and go on: the coordinator waits for the answer."""
    try:
        yield
    except (FedL2GError, OSError) as error:
        _log.warning("this site's own record cannot be written: %s", error)


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")
