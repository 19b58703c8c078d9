"""Terminal tables of the available methods, models, datasets and experiments of the paper."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table


def method_table(methods: Iterable[Mapping[str, Any]]) -> Table:
    """A row per method, with its options and their defaults."""
    table = Table("method", "what it does", "options (--set method.NAME=VALUE)")
    for method in methods:
        options = ", ".join(f"{name}={option['default']}" for name, option in method["options"].items())
        table.add_row(method["name"], method["summary"], options)
    return table


def model_table(models: Iterable[Mapping[str, Any]], title: str) -> Table:
    """A row per architecture, with its size and, if measured, the time of a training step."""
    table = Table("architecture", "parameters", "feature width", "ms per step", title=title)
    for model in models:
        step = "" if model["step_seconds"] is None else f"{1000 * model['step_seconds']:.1f}"
        table.add_row(model["name"], f"{model['parameters']:,}", str(model["feature_width"]), step)
    return table


def group_table(groups: Mapping[str, Iterable[str]]) -> Table:
    """A row per model group."""
    table = Table("group", "architectures (client i gets number i mod count)")
    for name, members in groups.items():
        table.add_row(name, ", ".join(members))
    return table


def dataset_table(datasets: Iterable[Mapping[str, Any]]) -> Table:
    """A row per named dataset."""
    table = Table("dataset", "kind", "what it is", "samples", "classes", "pixels", "groups", "download MB")
    for dataset in datasets:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in dataset.values()))
    return table


def paper_table(experiments: Iterable[Mapping[str, Any]]) -> Table:
    """A row per experiment of the paper."""
    table = Table("experiment", "kind", "what it shows", "cells")
    for experiment in experiments:
        table.add_row(*(str(experiment[name]) for name in ("name", "kind", "title", "cells")))
    return table
