"""Runs and comparisons for scripts and notebooks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from fedl2g import session
from fedl2g.api.comparison import ComparedMethods
from fedl2g.api.data import Data
from fedl2g.api.networks import models_setting
from fedl2g.api.result import Result
from fedl2g.datasets import Dataset
from fedl2g.errors import RunError, SettingError
from fedl2g.experiment import Experiment, flat, overlay
from fedl2g.federation import Observer
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
    named = {one.name for one in kept} | {"dataset"}
    settings = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=field.get_default(call_default_factory=True))
        for name, field in Experiment.model_fields.items()
        if name not in named
    ]
    function.__signature__ = own.replace(parameters=[*kept, *settings])  # type: ignore[attr-defined]
    return function


@_with_settings
def run(
    experiment: Experiment | None = None,
    out: Path | str | None = None,
    observers: Sequence[Observer] = (),
    *,
    data: Data | Dataset | Path | str | None = None,
    models: Any = None,
    quiet: bool = False,
    **settings: Any,
) -> Result:
    """Run an experiment, given whole or by its settings, and return its result.

    `data` is what `fedl2g.data` returned, or the name of a dataset; `models` a name, a torch module, a class or
    function that returns one, or a list of these. All other settings are those of `fedl2g.Experiment`:
    `method="fedl2g-f"`, `method={"name": "fedl2g-f", "warmup_rounds": 5}`, `execution={"engine": "workers"}`.

    The run directory is `out`, or one named after the experiment below `runs/`. If it already holds this experiment,
    the run is continued, or its result returned if it is finished. `observers` are called after every round.
    """
    chosen = _experiment(experiment, data, models, settings)
    with closing(RoundProgress(progress_console(quiet))) as progress:
        return Result.of(runner.run(chosen, out, [progress, *observers], data=_loaded(data), progress=progress.loading))


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
    with closing(RoundProgress(progress_console(quiet))) as progress:
        found = runner.resume(
            path, [progress, *observers], rounds=rounds, execution=execution, trust=trust, progress=progress.loading
        )
    return Result.of(found)


def load(path: Path | str, *, trust: bool = False) -> Result:
    """The result of an earlier run; one that names code of yours is only opened with `trust`."""
    result = RunDirectory.open(Path(path), trust=trust).result()
    if result is None:
        raise RunError(f"{path}: the run is not finished; continue it with fedl2g.resume({str(path)!r})")
    return Result.of(result)


@_with_settings
def compare(
    methods: Sequence[str] = ("local", "fedl2g-l", "fedl2g-f"),
    seeds: int = 1,
    out: Path | str | None = None,
    *,
    data: Data | Dataset | Path | str | None = None,
    models: Any = None,
    against: str | None = None,
    jobs: int = 1,
    quiet: bool = False,
    **settings: Any,
) -> ComparedMethods:
    """Run several methods with several seeds on the same partitions and initial models.

    A method is a name, or a name with options: "fedl2g-f:server_lr=0:warmup_rounds=10". Each is set against `against`,
    by default local training if that is among them. The other settings are those of `fedl2g.run`; an option of several
    methods is given as `compare(..., **{"method.warmup_rounds": 5})`. `jobs` runs go on at a time, in processes of
    their own.
    """
    if isinstance(methods, str):
        methods = methods.split(",")
    overrides = flat(_overrides(data, models, settings))
    comparison = Comparison.plan(None, overrides, list(methods), seeds, None if out is None else Path(out), against)
    for experiment in comparison.experiments.values():
        _require_one_process(experiment, jobs)
    run_comparison(comparison, progress_console(quiet), jobs=jobs, data=_loaded(data))
    comparison.check()
    comparison.write()
    return ComparedMethods(comparison)


def _experiment(
    experiment: Experiment | None, data: Data | Dataset | Path | str | None, models: Any, settings: Mapping[str, Any]
) -> Experiment:
    overrides = _overrides(data, models, settings)
    if experiment is None:
        chosen = Experiment(**overlay({}, overrides))
    elif not overrides:
        chosen = experiment
    else:
        chosen = Experiment(**overlay(experiment.model_dump(mode="json", exclude_none=True), overrides))
    _require_one_process(chosen, jobs=1)
    return chosen


def _overrides(data: Data | Dataset | Path | str | None, models: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(settings)
    if data is not None and not isinstance(data, Dataset):
        found |= data.settings if isinstance(data, Data) else {"dataset": str(data)}
    return found if models is None else {**found, "models": models_setting(models)}


def _loaded(data: Data | Dataset | Path | str | None) -> Dataset | None:
    return data.dataset if isinstance(data, Data) else data if isinstance(data, Dataset) else None


def _require_one_process(experiment: Experiment, jobs: int) -> None:
    """Networks of a session exist in this process alone."""
    kept = [name for name in experiment.architectures if session.is_kept(name)]
    if kept and (jobs > 1 or experiment.execution.engine != "inline"):
        where = "jobs > 1" if jobs > 1 else f"execution.engine={experiment.execution.engine!r}"
        name = kept[0].partition(":")[2].rpartition("_")[0]
        raise SettingError(
            f"models: {name} was defined in this session, and {where} starts other processes, which cannot import it; "
            "put it in a file such as my_models.py and give models='my_models:NAME', or use the engine inline"
        )
