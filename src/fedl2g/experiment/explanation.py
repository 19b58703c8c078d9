"""Explanations of settings: meaning, allowed values, default."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedl2g.errors import SettingError, suggestion
from fedl2g.experiment.files import flat
from fedl2g.experiment.settings import Experiment
from fedl2g.experiment.words import RENAMED, expectation, table_of, unknown_setting
from fedl2g.methods.registry import Method, get_method, method_names


def explain(name: str) -> str:
    """Explain a setting (`rounds`, `execution.engine`, `method.server_lr`, ...): meaning, allowed values, default.

    A table (`optimizer`) is explained with all its settings.
    """
    names = []
    for known, text in () if name in RENAMED else documented_fields():
        if known == name:  # return early: the options of methods come last and need torch
            inner = _inner(name, Experiment.model_fields[name]) if name in Experiment.model_fields else {}
            return "\n".join([text, *(f"{setting}: {meaning}" for setting, meaning in inner.items())])
        names.append(known)
    raise SettingError(unknown_setting(name, f"{suggestion(name, names)}`fedl2g explain` lists all settings", names))


def documented_fields() -> Iterable[tuple[str, str]]:
    """Every setting with its explanation; the options of methods come last."""
    fields = Experiment.model_fields
    for name, field in fields.items():
        yield name, _describe(field, name)
    for name, field in fields.items():
        yield from _inner(name, field).items()
    seen: dict[str, list[str]] = {}
    for method in method_names():
        for name, text in explain_options(get_method(method)).items():
            seen.setdefault(name, []).append(f"{method}: {text}")
    for name, lines in seen.items():
        yield f"method.{name}", "\n".join(lines)


def _inner(name: str, field: FieldInfo) -> dict[str, str]:
    """The settings of a table, each with its explanation; those of `method` depend on the method."""
    table = None if name == "method" else table_of(field)
    return {} if table is None else {f"{name}.{inner}": _describe(s) for inner, s in table.model_fields.items()}


def explain_options(method: Method) -> dict[str, str]:
    """The options of a method, each with its meaning, allowed values and default."""
    fields = method.options.model_fields.items()
    return {name: _describe(field) for name, field in fields if name != "name"}


def default_settings() -> dict[str, Any]:
    """Every default by dotted name, except the method's options and settings that are absent by default."""
    fields = {name: field for name, field in Experiment.model_fields.items() if name != "method"}
    values = {name: field.get_default(call_default_factory=True) for name, field in fields.items()}
    plain = {name: v.model_dump(mode="json") if isinstance(v, BaseModel) else v for name, v in values.items()}
    return {name: value for name, value in flat(plain).items() if value is not None}


def _describe(field: FieldInfo, name: str = "") -> str:
    details = [expectation(field, name) or str(field.annotation).replace("typing.", "")]
    if field.is_required():
        details.append("must be given")
    elif field.default_factory is None:
        shown = json.dumps(field.default, default=str, ensure_ascii=False)
        details.append("absent by default" if field.default is None else f"default {shown}")
    return f"{field.description or 'No description.'} ({'; '.join(details)})"
