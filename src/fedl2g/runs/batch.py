"""Runs many experiments as one resumable batch, in this process or in several subprocesses at a time."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

from fedl2g.datasets import Dataset
from fedl2g.errors import FedL2GError
from fedl2g.experiment import Experiment
from fedl2g.federation import Observer
from fedl2g.interrupts import interrupted, orderly_end, process_ended, start_process
from fedl2g.references import loaded_plugins
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.execute import Interrupted
from fedl2g.runs.layout import is_run
from fedl2g.runs.result import RunResult
from fedl2g.runs.runner import run
from fedl2g.setup import load_data, settle_layout

STOPPING = "stopping after the current round of each run, with checkpoints"
_TICK_SECONDS = 1.0
GO_ON = "interrupted; every started run has a checkpoint; the same command continues"


def run_all(
    experiments: Mapping[Path, Experiment],
    *,
    jobs: int = 1,
    watch: Callable[[Path], list[Observer]] | None = None,
    failed: Callable[[Path, FedL2GError], None] | None = None,
    data: Dataset | None = None,
    tick: Callable[[], None] = lambda: None,
    message: Callable[[], str] = lambda: STOPPING,
) -> Iterator[tuple[Path, RunResult]]:
    """Run experiments in their directories; finished runs are not repeated.

    With one job they run in this process, each with the observers that `watch` makes for it; with more, each in a
    subprocess. `failed` is called for a run that fails, and the batch continues; without it the error is raised.
    `data` is their common dataset if it is already loaded; subprocesses load it themselves. While subprocesses run,
    `tick` is called every second; `message` is printed when Ctrl-C asks them to stop.
    """

    def attempt(path: Path, get: Callable[[], RunResult]) -> Iterator[tuple[Path, RunResult]]:
        try:
            result = get()
        except FedL2GError as error:
            if isinstance(error, Interrupted) and len(experiments) > 1:
                raise Interrupted(GO_ON) from error  # not with `resume`, which continues one run
            if failed is None or isinstance(error, Interrupted):
                raise
            failed(path, error)
        else:
            yield path, result

    experiments = settle_layouts(experiments, data)
    if jobs == 1:
        for path, experiment in experiments.items():
            yield from attempt(path, partial(run, experiment, path, watch(path) if watch else (), data=data))
        return
    with orderly_end(message, lambda: None), ThreadPoolExecutor(jobs) as pool:
        waiting = {pool.submit(_run_in_subprocess, path, experiment): path for path, experiment in experiments.items()}
        try:
            while waiting:
                done, _ = wait(waiting, _TICK_SECONDS, FIRST_COMPLETED)
                for future in done:
                    yield from attempt(waiting.pop(future), future.result)
                tick()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def settle_layouts(experiments: Mapping[Path, Experiment], data: Dataset | None = None) -> dict[Path, Experiment]:
    """Resolve `layout = "auto"` once for runs on the same data and models, so that methods share a layout.

    Runs that have started keep their layout, and new runs adopt it. An experiment whose layout cannot be resolved is
    returned unchanged: running it raises the error.
    """
    settled = dict(experiments)
    waiting = [path for path, experiment in experiments.items() if experiment.layout == "auto"]
    started = [path for path in waiting if is_run(path)]
    chosen: dict[tuple[object, ...], str] = {}
    for path in dict.fromkeys(started + waiting):
        e = experiments[path]
        key = (e.dataset, e.samples, e.image_size, e.models, e.batch_size, e.device)
        with contextlib.suppress(FedL2GError):
            if path in started:
                _, settled[path] = RunDirectory.open_for(path, e)
            else:
                if key not in chosen:
                    chosen[key] = settle_layout(e, load_data(e) if data is None else data).layout
                settled[path] = e.settled(chosen[key])
        chosen.setdefault(key, settled[path].layout)
    return settled


def _run_in_subprocess(path: Path, experiment: Experiment) -> RunResult:
    directory = RunDirectory(path)
    if directory.result() is not None and directory.about()["rounds"] == experiment.rounds:
        return run(experiment, path)  # already finished: no subprocess needed
    if interrupted():
        raise Interrupted(GO_ON)
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:  # without a name: nothing is left of it
        file.write(experiment.to_toml())
        file.seek(0)
        plugins = [argument for plugin in loaded_plugins() for argument in ("--plugin", plugin)]
        process = start_process(
            [
                sys.executable,
                "-m",
                "fedl2g",
                "run",
                f"/dev/fd/{file.fileno()}",
                "--out",
                str(path),
                "--json",
                "--quiet",
                *plugins,
            ],
            first=signal.SIGTERM,  # it finishes its round
            pass_fds=[file.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        out, err = process.communicate()
        process_ended(process)
    if process.returncode == 0:
        return RunResult(**json.loads(out.splitlines()[-1]))
    if interrupted() or process.returncode == Interrupted.exit_code:
        raise Interrupted(GO_ON)
    message = err.strip().splitlines()[-1].removeprefix("fedl2g: ") if err.strip() else ""
    raise FedL2GError(f"{path}: the run failed: {message}")
