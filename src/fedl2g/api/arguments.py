"""Checks of the arguments of the Python interface: a wrong one is one sentence, which never prints an array."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedl2g.api.data import Data
from fedl2g.errors import SettingError, kind_of, shown
from fedl2g.experiment import Experiment
from fedl2g.federation import Observer


def experiment_given(experiment: object) -> tuple[Experiment | None, Mapping[str, Any]]:
    """The experiment of a caller, or the settings that the caller gave as a dictionary."""
    if experiment is None or isinstance(experiment, Experiment):
        return experiment, {}
    if isinstance(experiment, Mapping) and all(isinstance(name, str) for name in experiment):
        return None, experiment
    raise SettingError(
        f"experiment: {kind_of(experiment)} is not an experiment; expected fedl2g.Experiment(...) or a dictionary of "
        "settings; give single settings by name, as in fedl2g.run(method='fedl2g-f', rounds=60)"
    )


def data_settings(data: object, others: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by which an experiment names the caller's data; among the others there is none of them."""
    found = _data_settings(data)
    if twice := sorted(found.keys() & others.keys()):
        option = "" if twice[0] == "dataset" else f", or fedl2g.data(NAME, {twice[0]}=...)"
        raise SettingError(f"{twice[0]}: data={shown(data)} says it already; give one of the two{option}")
    return found


def _data_settings(data: object) -> dict[str, Any]:
    if data is None:
        return {}
    if isinstance(data, Data):
        return dict(data.settings)
    if isinstance(data, str | Path):
        return {"dataset": str(data)}
    raise SettingError(
        f"data: {kind_of(data)} cannot be used as it is; expected what fedl2g.data returns, or a dataset's name; wrap "
        "it first: data=fedl2g.data(inputs, labels)"
    )


def path_given(path: object, what: str) -> Path:
    """A file or folder of the caller."""
    if isinstance(path, str | os.PathLike) and os.fspath(path):
        return Path(os.fspath(path))
    raise SettingError(f"{what}: {shown(path)} is not a path; expected text or a pathlib.Path")


def observers_given(observers: object) -> list[Observer]:
    """The caller's observers."""
    found: list[Observer] = []
    for one in observers if isinstance(observers, Sequence) else [observers]:
        if not isinstance(one, Observer):
            wanted = "a class" if isinstance(one, type) else kind_of(one)
            raise SettingError(
                f"observers: {wanted} is not an observer; expected a list of objects of classes derived from "
                "fedl2g.Observer, such as observers=[MyObserver()]"
            )
        found.append(one)
    return found


def methods_given(methods: object) -> list[str]:
    """The caller's methods: a list of names with options, or one text with commas."""
    found = methods.split(",") if isinstance(methods, str) else methods
    if isinstance(found, Sequence) and found and all(isinstance(one, str) for one in found):
        return list(found)
    raise SettingError(
        f"methods: {shown(methods)} is not allowed; expected a list of names, such as ['local', 'fedl2g-f:server_lr=1']"
    )


def flag_given(flag: object, what: str) -> bool:
    """Yes or no."""
    if isinstance(flag, bool):
        return flag
    raise SettingError(f"{what}: {shown(flag)} is not allowed; expected True or False")


def whole_number(number: object, what: str) -> int:
    """A number of things, at least one of them."""
    if isinstance(number, int) and not isinstance(number, bool) and number >= 1:
        return number
    raise SettingError(f"{what}: {shown(number)} is not allowed; expected a whole number of at least 1")
