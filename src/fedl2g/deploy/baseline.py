"""The twin of a site's network that trains on the site's own data alone, to say what the federation brings.

A process of its own at the lowest priority: it takes the settings of the run, the site's own network and data, and
the method `local`. Its records and its models stay in the site's store; it has no connection to anybody. It ends with
the process that started it, and goes on after its last round when it is started again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from fedl2g.deploy.children import Child, end_with_parent, start_child
from fedl2g.deploy.site_file import SiteFile, read_site
from fedl2g.runs.layout import RESULT, is_run

_STARTS = 3  # of one run's twin by one process: a twin that always fails is given up
# What concerns others, or what is sent to them.
_OTHERS = ("method", "participation", "aggregation", "availability", "attack", "noise", "privacy", "sampler")
_twins: dict[str, list[Child]] = {}


def keep_baseline(file: SiteFile, run: str) -> None:
    """Start the twin of a run, if the site wants one and it is not running, nor done."""
    if not file.local_baseline or (file.path(file.store) / run / "alone" / RESULT).is_file():
        return
    started = _twins.setdefault(run, [])
    if len(started) >= _STARTS or (started and started[-1].exit_code is None):
        return
    started.append(start_child("fedl2g.deploy.baseline", str(file.folder / file.file), run, env={}))


def train_alone(file: SiteFile, run: str, rounds: int | None = None) -> Path:
    """Train the twin to the last round (or so many), after the rounds that are done; returns its run directory."""
    from fedl2g.deploy.own_record import ALONE, OWN, create_record, say_gain
    from fedl2g.deploy.own_site import load_data, own_site, stored_request
    from fedl2g.engines.flower.messages import Request
    from fedl2g.engines.flower.node import Node
    from fedl2g.folder import Folder
    from fedl2g.learning.devices import resolve_device
    from fedl2g.round.evaluation import pooled_accuracy
    from fedl2g.round.record import RoundRecord
    from fedl2g.runs.directory import RunDirectory
    from fedl2g.runs.result import summarize

    folder = file.path(file.store) / run
    federated, classes, inputs = stored_request(Folder(file.path(file.store)) / run, trust=True)
    experiment = alone(federated)
    setup = own_site(file, experiment, load_data(file, classes, inputs))
    path, client = folder / ALONE, file.client_id
    node = Node(client, setup, resolve_device(file.device), folder / f"{ALONE}-store")
    directory = RunDirectory(path, trusted=True)
    if not is_run(path):
        directory = create_record(path, file, setup, experiment)
    with directory.lock(wait=60.0):
        done = {record.round for record in directory.history()}
        for round in range(1 + (experiment.rounds if rounds is None else rounds)):
            if round in done:
                continue
            request = Request("alone", experiment, classes, inputs, round, {})
            record = RoundRecord(round)
            if round > 0:
                report = node.train(request).report
                losses = {} if report.loss is None else {client: report.loss}
                record = RoundRecord(
                    round, [client], loss=report.loss, client_losses=losses, client_seconds=report.seconds, replied=1
                )
            if round % experiment.evaluate_every == 0 or round == experiment.rounds:
                record.accuracy = pooled_accuracy([node.evaluate(request)], {})
            directory.append(record)
        history = directory.history()
        if history[-1].round == experiment.rounds and directory.result() is None:
            directory.finish(summarize(history, method="local", seed=experiment.seed, status="finished", run=str(path)))
            say_gain(RunDirectory(folder / OWN, trusted=True), directory)
    return path


def alone(experiment: Any) -> Any:
    """The same experiment for a client that trains alone: its own settings, data and seed, nothing of the others."""
    from fedl2g.experiment import Experiment

    settings = experiment.model_dump(exclude=set(_OTHERS))
    return Experiment(**settings, method={"name": "local"})


def main() -> None:
    """Train the twin of the site whose file is the first argument, in the run that is the second."""
    end_with_parent(orderly=False)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.nice(19)
    import logging

    from fedl2g.deploy.site_log import log_to_stderr
    from fedl2g.errors import FedL2GError

    log_to_stderr()
    try:
        train_alone(read_site(Path(sys.argv[1]), trust=True), sys.argv[2])
    except FedL2GError as error:
        logging.getLogger(__name__).warning("the twin that trains alone stopped: %s", error)
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
