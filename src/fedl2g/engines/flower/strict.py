"""Strict reading of received Flower records: exact types, known keys, bounded ranges, printable names.

A bool is not a number, a float is not a count, and a key that nobody asked for is refused. Every function raises
PayloadError.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from flwr.app import RecordDict

from fedl2g.errors import PayloadError

NAME_LIMIT = 64  # characters of a name, and of what is shown of a received value
COUNT_LIMIT = 10**9  # upper bound on samples and steps: one client's count must not outweigh all others by far
_RUN = re.compile(rf"[0-9A-Za-z]{{1,{NAME_LIMIT}}}")


def shown(value: object) -> str:
    """The beginning of a received value, safe to log: control characters are escaped."""
    return printable(str(value)[:NAME_LIMIT])


def printable(text: str) -> str:
    """A received text without control characters and line breaks, which could forge lines of a log."""
    return "".join(c if c.isprintable() else " " for c in text)


def only(records: RecordDict, *names: str) -> None:
    """Check that a message has exactly these records."""
    if extra := [name for name in records if name not in names]:
        raise PayloadError(f"message: has an unknown record {shown(extra[0])!r}; expected {', '.join(names)}")
    if missing := [name for name in names if name not in records]:
        raise PayloadError(f"message: has no record {missing[0]!r}; expected {', '.join(names)}")


def record(records: RecordDict, name: str, kind: type[Any]) -> Any:
    """One record of a message."""
    found = records.get(name)
    if not isinstance(found, kind):
        raise PayloadError(f"message: has no {kind.__name__} named {name!r}")
    return found


def keys(found: Mapping[str, object], what: str, required: Collection[str], optional: Collection[str] = ()) -> None:
    """Check that a record has exactly the required keys, and no others than the optional ones."""
    known = (*required, *optional)
    if unknown := [name for name in found if name not in known]:
        raise PayloadError(f"{what}: entry {shown(unknown[0])!r} is unknown; expected {', '.join(known)}")
    if missing := [name for name in required if name not in found]:
        raise PayloadError(f"{what}: entry {missing[0]!r} is missing; expected {', '.join(known)}")


def whole(value: object, name: str, low: int = 0, high: int = COUNT_LIMIT) -> int:
    """A whole number in a range."""
    if type(value) is not int or not low <= value <= high:
        raise PayloadError(f"{name}: {shown(value)} is not allowed; expected a whole number from {low} to {high}")
    return value


def number(value: object, name: str, low: float, high: float) -> float:
    """A finite float in a range."""
    if type(value) is not float or not low <= value <= high or not math.isfinite(value):
        raise PayloadError(f"{name}: {shown(value)} is not allowed; expected a number from {low:g} to {high:g}")
    return value


def text(value: object, name: str, limit: int = NAME_LIMIT) -> str:
    """A printable text of bounded length that is not blank."""
    if type(value) is not str or len(value) > limit or not value.isprintable() or value.strip() != value or not value:
        raise PayloadError(f"{name}: {shown(value)!r} is not allowed; expected 1 to {limit} printable characters")
    return value


def run_id(value: object) -> str:
    """The id of a run, which nodes use as a folder name."""
    if type(value) is not str or _RUN.fullmatch(value) is None:
        raise PayloadError(
            f"run: {shown(value)!r} is not allowed; expected 1 to {NAME_LIMIT} of the letters a to z and digits"
        )
    return value
