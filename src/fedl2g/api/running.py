"""Runs and comparisons for scripts and notebooks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from fedl2g import session
from fedl2g.api.arguments import (
    data_settings,
    experiment_given,
    flag_given,
    methods_given,
    observers_given,
    path_given,
    whole_number,
)
from fedl2g.api.comparison import ComparedMethods
from fedl2g.api.data import Data
from fedl2g.api.networks import models_setting
from fedl2g.api.result import Result, with_directory
from fedl2g.api.warmup import leave_rounds_to_train
from fedl2g.errors import RunError, SettingError
from fedl2g.experiment import Experiment, flat, overlay
from fedl2g.federation import Observer
from fedl2g.methods.registry import DEFAULT_METHOD
from fedl2g.models.catalog import GROUP_OF_KIND
from fedl2g.runs import runner
from fedl2g.runs.comparing import run_comparison
from fedl2g.runs.comparison import Comparison
from fedl2g.runs.console import progress_console
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.progress import RoundProgress

Function = TypeVar("Function", bound=Callable[..., Any])


def _with_settings(function: Function) -> Function:
    """The same function, whose signature also names the experiment's settings, for completion and help."""
    own = inspect.signature(function)
    kept = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    named = {one.name for one in kept} | {"dataset"} | ({"method"} if "methods" in own.parameters else set())
    settings = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=field.get_default(call_default_factory=True))
        for name, field in Experiment.model_fields.items()
        if name not in named
    ]
    function.__signature__ = own.replace(parameters=[*kept, *settings])  # type: ignore[attr-defined]
    return function


@_with_settings
def run(
    experiment: Experiment | Mapping[str, Any] | None = None,
    out: Path | str | None = None,
    observers: Sequence[Observer] = (),
    *,
    data: Data | Path | str | None = None,
    models: Any = None,
    quiet: bool = False,
    **settings: Any,
) -> Result:
    """Run an experiment, given whole or by its settings, and return its result.

    `data` is what `fedl2g.data` returned, or the name of a dataset; `models` a name, a torch module, a class or
    function that returns one, or a list of these; without any, the small networks for the kind of the data. All other
    settings are those of `fedl2g.Experiment`:
    `method="fedl2g-f"`, `method={"name": "fedl2g-f", "warmup_rounds": 5}`, `execution={"engine": "workers"}`. Where a
    method's default warm-up would take all rounds, it takes half of them, and a line says so.

    The run directory is `out`, or one named after the experiment below `runs/`. If it already holds this experiment,
    the run is continued, or its result returned if it is finished. `observers` are called after every round.
    """
    given, directory = observers_given(observers), None if out is None else path_given(out, "out")
    console = progress_console(flag_given(quiet, "quiet"))
    whole, overrides = experiment_given(experiment)
    default = whole is None and "models" not in overrides
    chosen = _experiment(whole, {**overrides, **_overrides(data, models, settings, default=default)}, console)
    with closing(RoundProgress(console)) as progress:
        found = runner.run(chosen, directory, [progress, *given], progress=progress.loading)
    return with_directory(found)


def resume(
    path: Path | str,
    observers: Sequence[Observer] = (),
    *,
    rounds: int | None = None,
    execution: Mapping[str, object] | None = None,
    trust: bool = False,
    quiet: bool = False,
) -> Result:
    """Continue a run from its last checkpoint; the numbers are those of an uninterrupted run.

    Python code that the run's own file names (its method, models or data) is only imported with `trust`. With `rounds`,
    a run is extended.
    """
    given, directory = observers_given(observers), path_given(path, "path")
    with closing(RoundProgress(progress_console(flag_given(quiet, "quiet")))) as progress:
        found = runner.resume(
            directory,
            [progress, *given],
            rounds=rounds,
            execution=execution,
            trust=flag_given(trust, "trust"),
            progress=progress.loading,
        )
    return with_directory(found)


def load(path: Path | str, *, trust: bool = False) -> Result:
    """The result of an earlier run; one that names code of yours is only opened with `trust`."""
    result = RunDirectory.open(path_given(path, "path"), trust=flag_given(trust, "trust")).result()
    if result is None:
        raise RunError(f"{path}: the run is not finished; continue it with fedl2g.resume({str(path)!r})")
    return with_directory(result)


@_with_settings
def compare(
    methods: Sequence[str] = ("local", "fedl2g-l", "fedl2g-f"),
    seeds: int = 1,
    out: Path | str | None = None,
    *,
    data: Data | Path | str | None = None,
    models: Any = None,
    against: str | None = None,
    jobs: int = 1,
    quiet: bool = False,
    **settings: Any,
) -> ComparedMethods:
    """Run several methods with several seeds on the same partitions and initial models.

    A method is a name, or a name with options: "fedl2g-f:server_lr=0:warmup_rounds=10". Each is compared with
    `against`, by default local training if that is among them. The other settings are those of `fedl2g.run`; an option
    of several methods is given as `compare(..., **{"method.warmup_rounds": 5})`. `jobs` is the number of runs at a
    time, each in its own process.
    """
    if "method" in settings:
        raise SettingError("method: a comparison has several; expected methods=['local', 'fedl2g-f']")
    names, directory = methods_given(methods), None if out is None else path_given(out, "out")
    console = progress_console(flag_given(quiet, "quiet"))
    overrides = leave_rounds_to_train(flat(_overrides(data, models, settings)), names, console)
    comparison = Comparison.plan(None, overrides, names, whole_number(seeds, "seeds"), directory, against)
    for experiment in comparison.experiments.values():
        _require_one_process(experiment, whole_number(jobs, "jobs"))
    run_comparison(comparison, console, jobs=jobs)
    comparison.check()
    comparison.write()
    return ComparedMethods(comparison)


def _experiment(experiment: Experiment | None, overrides: Mapping[str, Any], console: Console) -> Experiment:
    if experiment is None:
        method = overrides.get("method", DEFAULT_METHOD)
        chosen = Experiment(**overlay({}, leave_rounds_to_train(overrides, [method], console)))
    elif not overrides:
        chosen = experiment
    else:
        chosen = Experiment(**overlay(experiment.model_dump(mode="json", exclude_none=True), overrides))
    _require_one_process(chosen, jobs=1)
    return chosen


def _overrides(data: object, models: Any, settings: Mapping[str, Any], *, default: bool = True) -> dict[str, Any]:
    """The settings given by the arguments; with `default`, data other than images select the networks of their kind."""
    found = {**settings, **data_settings(data, settings)}
    if models is not None:
        found["models"] = models_setting(models)
    elif default and isinstance(data, Data) and data.dataset.schema.kind != "image":
        found.setdefault("models", GROUP_OF_KIND[data.dataset.schema.kind])
    return found


def _require_one_process(experiment: Experiment, jobs: int) -> None:
    """Refuse other processes for networks of a session, which exist in this process alone."""
    kept = [name for name in experiment.architectures if session.is_kept(name)]
    if kept and (jobs > 1 or experiment.execution.engine != "inline"):
        where = "jobs > 1" if jobs > 1 else f"execution.engine={experiment.execution.engine!r}"
        name = kept[0].partition(":")[2].rpartition("_")[0]
        raise SettingError(
            f"models: {name} was defined in this session, and {where} starts other processes, which cannot import it; "
            "put it in a file such as my_models.py and give models='my_models:NAME', or use the engine inline"
        )
