"""Several runs as one piece of work: resumable as a whole, in this process or several at a time."""

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
    """Run experiments in their directories; those that are over are not run again.

    With one job they run here, each watched by the observers that `watch` makes for it; with more, each in a process of
    its own. `failed` is told of a run that could not be run, and the others go on; without it the error is raised.
    `data` is the dataset of all of them, where it is loaded already; processes of their own load it themselves.
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
        waiting = {pool.submit(_run_apart, path, experiment): path for path, experiment in experiments.items()}
        try:
            for future in as_completed(waiting):
                yield from attempt(waiting[future], future.result)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def settle_layouts(experiments: Mapping[Path, Experiment], data: Dataset | None = None) -> dict[Path, Experiment]:
    """Settle `auto` once for runs on the same data and models: methods are compared in equal layouts.

    A run that was started keeps its layouts, and gives them to those that were not. An experiment that cannot be
    settled is left as it is: its run will say why.
    """
    settled = dict(experiments)
    waiting = [path for path, experiment in experiments.items() if experiment.layout == "auto"]
    started = [path for path in waiting if (path / "run.json").is_file()]
    chosen: dict[tuple[object, ...], str] = {}
    for path in dict.fromkeys(started + waiting):
        e = experiments[path]
        alike = (e.dataset, e.samples, e.image_size, e.models, e.batch_size, e.device)
        with contextlib.suppress(FedL2GError):
            if path in started:
                _, settled[path] = RunDirectory.open_own(path, e)
            else:
                if alike not in chosen:
                    chosen[alike] = settle_layout(e, load_data(e) if data is None else data).layout
                settled[path] = e.settled(chosen[alike])
        chosen.setdefault(alike, settled[path].layout)
    return settled


def _run_apart(path: Path, experiment: Experiment) -> RunResult:
    if RunDirectory(path).result() is not None:
        return run(experiment, path)  # it is over: a process of its own would only be slow to start
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
    said = done.stderr.strip().splitlines()[-1].removeprefix("fedl2g: ") if done.stderr.strip() else ""
    if done.returncode == Interrupted.exit_code:
        raise Interrupted(said)
    if done.returncode != 0:
        raise FedL2GError(f"the run in {path} failed: {said}")
    return RunResult(**json.loads(done.stdout.splitlines()[-1]))
