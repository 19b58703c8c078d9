"""Runs many experiments as one resumable batch, in this process or in several subprocesses at a time."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path

from fedl2g.data import Dataset
from fedl2g.errors import FedL2GError
from fedl2g.experiment import Experiment
from fedl2g.federation import Observer
from fedl2g.references import loaded_plugins
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.execute import Interrupted
from fedl2g.runs.result import RunResult
from fedl2g.runs.runner import run
from fedl2g.setup import load_data, settle_layout


def run_all(
    experiments: Mapping[Path, Experiment],
    *,
    jobs: int = 1,
    watch: Callable[[Path], list[Observer]] | None = None,
    failed: Callable[[Path, FedL2GError], None] | None = None,
    data: Dataset | None = None,
) -> Iterator[tuple[Path, RunResult]]:
    """Run experiments in their directories; finished runs are not repeated.

    With one job they run in this process, each with the observers that `watch` makes for it; with more, each in a
    subprocess. `failed` is called for a run that fails, and the batch continues; without it the error is raised.
    `data` is their common dataset if it is already loaded; subprocesses load it themselves.
    """

    def attempt(path: Path, get: Callable[[], RunResult]) -> Iterator[tuple[Path, RunResult]]:
        try:
            result = get()
        except FedL2GError as error:
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
    with ThreadPoolExecutor(jobs) as pool:
        waiting = {pool.submit(_run_in_subprocess, path, experiment): path for path, experiment in experiments.items()}
        try:
            for future in as_completed(waiting):
                yield from attempt(waiting[future], future.result)
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
    started = [path for path in waiting if (path / "run.json").is_file()]
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
    with tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8") as file:
        file.write(experiment.to_toml())
        file.flush()
        plugins = [argument for plugin in loaded_plugins() for argument in ("--plugin", plugin)]
        done = subprocess.run(
            [sys.executable, "-m", "fedl2g", "run", file.name, "--out", str(path), "--json", "--quiet", *plugins],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    message = done.stderr.strip().splitlines()[-1].removeprefix("fedl2g: ") if done.stderr.strip() else ""
    if done.returncode == Interrupted.exit_code:
        raise Interrupted(message)
    if done.returncode != 0:
        raise FedL2GError(f"{path}: the run failed: {message}")
    return RunResult(**json.loads(done.stdout.splitlines()[-1]))
