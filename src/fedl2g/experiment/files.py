"""Settings as text: reading and writing TOML, overrides, dotted names (no pydantic here)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from fedl2g.errors import SettingError

SHORT = {"method": "name", "aggregation": "rule", "optimizer": "name", "schedule": "name"}
"""Tables that may be given as a single word, and the setting in them that takes its value."""


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a TOML file, not yet validated."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SettingError(
            f"{path}: cannot be read ({reason}); expected a TOML file of settings; correct the path"
        ) from error
    return parse_settings(text, str(path))


def parse_settings(text: str, source: str = "the file") -> dict[str, Any]:
    """The settings in TOML text, not yet validated."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # e.g. a number with thousands of digits, or deep nesting
        raise SettingError(f"{source}: not valid TOML ({error}); correct it") from error


def write_settings(settings: Mapping[str, Any], headings: Mapping[str, str]) -> str:
    """Settings as TOML for people: single values first, then each table below a comment with its description."""
    tables = {name: value for name, value in settings.items() if isinstance(value, Mapping)}
    single = {name: value for name, value in settings.items() if name not in tables}
    parts = ["# `fedl2g explain NAME` says what a setting means; those without a value are left out.\n"]
    parts.append(tomli_w.dumps(single))
    for name, table in tables.items():
        heading = f"# {headings[name]}\n" if name in headings else ""
        parts.append(f"\n{heading}{tomli_w.dumps({name: table})}")
    return "".join(parts)


def overlay(settings: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Apply overrides to settings; "method.server_lr" reaches into the table `method`."""
    result = {key: dict(value) if isinstance(value, Mapping) else value for key, value in settings.items()}
    for dotted, value in overrides.items():
        table, _, key = dotted.partition(".")
        if not key:
            keeps_options = table == "method" and isinstance(value, str) and _method_name(result) == value
            if not keeps_options:
                result[table] = value
            continue
        inner = written_out(result).get(table, {})
        if not isinstance(inner, dict):
            raise SettingError(
                f"{dotted}: {table!r} is a single value and has no setting {key!r}; expected {table}=VALUE"
            )
        result[table] = {**inner, key: value}
    return result


def parse_override(text: str) -> tuple[str, Any]:
    """Split "key=value"; the value is parsed as TOML if it is valid TOML, otherwise taken as a string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise SettingError(f"--set: {text!r} is not of the form key=value; expected for example method.server_lr=1")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        return key.strip(), value.strip()


def written_out(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in which tables given as a single word are expanded."""
    return {
        name: {SHORT[name]: value} if name in SHORT and isinstance(value, str) else value
        for name, value in settings.items()
    }


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted names."""
    result: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            result |= flat(value, f"{prefix}{key}.")
        else:
            result[prefix + key] = value
    return result


def _method_name(settings: Mapping[str, Any]) -> object:
    method = settings.get("method")
    return method.get("name") if isinstance(method, dict) else method
