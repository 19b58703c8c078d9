"""Descriptions of settings for people: the allowed values, and error messages for all others.

Every message is one sentence of the form `field: what is wrong; what is expected; what to do`.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from fedl2g.errors import choices, shown
from fedl2g.experiment.files import SHORT
from fedl2g.registry import Registry

RENAMED = {
    "execution.deadline_seconds": "replies.deadline_seconds",
    "execution.minimum_replies": "replies.minimum",
    "execution.below_minimum": "replies.below_minimum",
    "execution.maximum_reply_mb": "replies.maximum_mb",
}
"""Former names of settings, and their current ones."""

_NUMBERS: dict[object, str] = {int: "a whole number", float: "a number"}


def table_of(field: FieldInfo) -> type[BaseModel] | None:
    """The model of a setting that is a table, perhaps an optional one; None for a single value."""
    kinds = [kind for kind in get_args(field.annotation) or [field.annotation] if kind is not types.NoneType]
    table = kinds[0] if len(kinds) == 1 else None
    return table if isinstance(table, type) and issubclass(table, BaseModel) else None


def expectation(field: FieldInfo, name: str = "") -> str | None:
    """The allowed values of a setting: "a whole number of at least 1", "one of a, b"; None for other types."""
    if table_of(field) is not None:
        return "a name or a table of settings" if name in SHORT else "a table of settings"
    kinds = _kinds(field.annotation, field.metadata)
    words = [_words(kind, metadata) for kind, metadata in kinds]
    return " or ".join(word for word in words if word) if all(words) else None


def _words(kind: Any, metadata: Sequence[Any]) -> str | None:
    registries = [item for item in metadata if isinstance(item, Registry)]
    if registries:
        return "one of " + ", ".join(registries[0].names())
    if get_origin(kind) is Literal:
        allowed = list(map(str, get_args(kind)))
        return allowed[0] if len(allowed) == 1 else "one of " + ", ".join(allowed)
    if kind is bool:
        return "true or false"
    if kind is str:
        return "text that is not empty" if _limit(metadata, "min_length") else "text"
    return f"{_NUMBERS[kind]}{_limits(metadata)}" if kind in _NUMBERS else None


def unknown_setting(name: str, hint: str, all_names: Iterable[str] = ()) -> str:
    """The message for an unknown setting; it ends with `hint` unless the right name is clear."""
    if name in RENAMED:
        return f"unknown setting {name!r}; it was renamed to {RENAMED[name]!r}"
    own = name.rpartition(".")[2]
    elsewhere = [other for other in all_names if other.rpartition(".")[2] == own]
    if elsewhere:
        return f"unknown setting {name!r}; did you mean {' or '.join(map(repr, elsewhere))}?"
    return f"unknown setting {name!r}; {hint}"


def one_sentence(error: ValidationError, model: type[BaseModel], prefix: str = "") -> str:
    """The first error in the settings of a model, as one sentence."""
    first = error.errors(include_url=False)[0]
    loc = [str(part) for part in first["loc"]]
    owner: type[BaseModel] | None = model
    field, depth = None, 0
    while owner is not None and depth < len(loc) and loc[depth] in (fields := _by_written_name(owner)):
        field = fields[loc[depth]]
        owner = table_of(field)
        depth += 1
    if first["type"] == "extra_forbidden":
        known = [name for name in _by_written_name(owner or model) if name != "name"]
        return unknown_setting(prefix + ".".join(loc), choices(loc[-1], known), dotted_names(model))
    # Below a field that is not a table, pydantic's location holds the types it tried or positions in a list.
    name = (prefix + ".".join(loc[:depth] or loc)).rstrip(".")
    expected = expectation(field, name) if field is not None else None
    if first["type"] == "missing" and depth == len(loc):
        return f"{name}: is missing" + (f"; expected {expected}" if expected else "")
    if expected is None or first["type"] in ("value_error", "assertion_error"):  # raised by a validator
        return f"{name}: {shown(first['input'])} is not allowed; {_reason(first)}"
    if first["type"] == "string_pattern_mismatch" and field is not None and field.description:
        expected = field.description
    return f"{name}: {shown(first['input'])} is not allowed; expected {expected}"


def _reason(error: Mapping[str, Any]) -> str:
    """Why a value is wrong, where only pydantic or a validator knows."""
    match error["type"]:
        case "too_short":
            return f"expected at least {error['ctx']['min_length']} of them"
        case "missing":
            return "expected more values"
    message: str = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return f"{message[:1].lower()}{message[1:]}"


def _by_written_name(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


def dotted_names(model: type[BaseModel]) -> list[str]:
    """The dotted names of the settings inside a model's tables, without the method's options."""
    tables = {name: table_of(field) for name, field in model.model_fields.items() if name != "method"}
    return [f"{name}.{inner}" for name, table in tables.items() if table is not None for inner in table.model_fields]


def _kinds(kind: Any, metadata: Sequence[Any]) -> list[tuple[Any, list[Any]]]:
    """The types that a setting may have, None apart, each with its constraints."""
    if get_origin(kind) in (Union, types.UnionType):
        kinds = [one for one in get_args(kind) if one is not types.NoneType]
        if set(kinds) == {int, float}:
            kinds = [float]
        return [found for one in kinds for found in _kinds(one, metadata)]
    if get_origin(kind) is Annotated:
        kind, *inner = get_args(kind)
        limits = [limit for one in inner for limit in (one.metadata if isinstance(one, FieldInfo) else [one])]
        return _kinds(kind, [*metadata, *limits])
    return [(kind, list(metadata))]


def _limit(metadata: Sequence[Any], name: str) -> Any:
    return next((getattr(item, name) for item in metadata if getattr(item, name, None) is not None), None)


def _limits(metadata: Sequence[Any]) -> str:
    """ " of at least 2", " above 0 and at most 1", " from 0 to 1"; "" without limits."""
    least, above, most, below = (_limit(metadata, name) for name in ("ge", "gt", "le", "lt"))
    if least is not None and most is not None:
        return f" from {least} to {most}"
    words = {"at least": least, "above": above, "at most": most, "below": below}
    text = " and ".join(f"{word} {limit}" for word, limit in words.items() if limit is not None)
    return f" of {text}" if text.startswith("at ") else f" {text}" if text else ""
