"""Shortens a default warm-up that would take all the rounds of a short run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console

from fedl2g.methods.registry import DEFAULT_METHOD, get_method

_SETTING = "warmup_rounds"


def leave_rounds_to_train(
    overrides: Mapping[str, Any], methods: Iterable[object], console: Console
) -> Mapping[str, Any]:
    """The settings, with a warm-up of half the rounds where a default one would leave no round to train in.

    A warm-up that the caller chose is left alone, and refused with all other settings that do not fit together. A
    method is a name, a name with options, or a table.
    """
    rounds = overrides.get("rounds")
    if not isinstance(rounds, int) or rounds < 1 or f"method.{_SETTING}" in overrides:
        return overrides
    defaults = {name: default for one in methods for name, default in _default_warm_up(one) if default >= rounds}
    if not defaults:
        return overrides
    name, default = next(iter(defaults.items()))
    console.print(
        f"warm-up: {rounds // 2} of the {rounds} rounds, because the {default} of {name} would leave none to train in; "
        f"method.{_SETTING} sets another number",
        highlight=False,
        markup=False,
    )
    return {**overrides, f"method.{_SETTING}": rounds // 2}


def _default_warm_up(method: object) -> list[tuple[str, int]]:
    """The method's name and default warm-up; empty if it has none, or the caller chose another."""
    if isinstance(method, str):
        name, *options = method.strip().split(":")
        chosen = {option.partition("=")[0].strip() for option in options}
    elif isinstance(method, Mapping) and isinstance(method.get("name", DEFAULT_METHOD), str):
        name, chosen = method.get("name", DEFAULT_METHOD), set(method)
    else:
        return []  # refused with the other settings
    known = get_method(name)
    if not known.traits.warm_up or _SETTING in chosen:
        return []
    return [(name, known.options.model_fields[_SETTING].default)]
