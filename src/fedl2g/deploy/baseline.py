"""A site's local baseline: the same network trained on the site's data alone, to show what the federation brings.

It runs in a separate process at the lowest priority, with the settings of the run, the site's own network and data, and
the method `local`. Its records and models stay in the site's store; it has no connection to anybody. It ends with
the process that started it, and continues after its last round when it is started again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from fedl2g.deploy.children import Child, end_with_parent, start_child
from fedl2g.deploy.site_file import SiteFile, read_site
from fedl2g.runs.layout import RESULT, is_run

_STARTS = 3  # of one run's baseline by one process: a baseline that always fails is given up
_OF_THE_FEDERATION = (  # settings that concern other clients, or what is sent to them
    "method",
    "participation",
    "aggregation",
    "availability",
    "attack",
    "noise",
    "privacy",
    "sampler",
)
_baselines: dict[str, list[Child]] = {}


def start_baseline(file: SiteFile, run: str) -> None:
    """Start the baseline of a run if the site wants one and it is neither running nor finished."""
    if not file.local_baseline or (file.path(file.store) / run / "alone" / RESULT).is_file():
        return
    started = _baselines.setdefault(run, [])
    if len(started) >= _STARTS or (started and started[-1].exit_code is None):
        return
    started.append(start_child("fedl2g.deploy.baseline", str(file.folder / file.file), run, env={}))


def train_alone(file: SiteFile, run: str, rounds: int | None = None) -> Path:
    """Train the remaining rounds of the baseline (at most `rounds` in all); returns its run directory."""
    from fedl2g.deploy.own_record import ALONE, OWN, create_record, log_gain
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
            log_gain(RunDirectory(folder / OWN, trusted=True), directory)
    return path


def alone(experiment: Any) -> Any:
    """The same experiment for a client that trains alone: without the settings that concern the other clients."""
    from fedl2g.experiment import Experiment

    settings = experiment.model_dump(exclude=set(_OF_THE_FEDERATION))
    return Experiment(**settings, method={"name": "local"})


def main() -> None:
    """Train the baseline of the site whose file is the first argument, for the run that is the second."""
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
        logging.getLogger(__name__).warning("the local baseline stopped: %s", error)
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
