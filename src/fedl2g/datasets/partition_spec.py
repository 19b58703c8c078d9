"""The setting `partition` as text: which forms there are, and what each takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedl2g.errors import SettingError, suggestion

FORMS = {
    "iid": "iid",
    "dirichlet": "dirichlet:0.1",
    "pathological": "pathological:2",
    "domain": "domain",
    "by": "by:COLUMN",
    "file": "file:PATH",
}


@dataclass(frozen=True)
class PartitionSpec:
    """A parsed partition setting: its kind and the value that kind takes, if any."""

    kind: str
    beta: float | None = None
    classes_per_client: int | None = None
    path: Path | None = None
    column: str | None = None


def parse_partition(spec: str) -> PartitionSpec:
    """Parse a setting such as `dirichlet:0.1`; the SettingError for an unknown one suggests the closest form."""
    kind, colon, value = spec.partition(":")
    if kind not in FORMS:
        hint = f"{suggestion(kind, FORMS)}known: {', '.join(FORMS.values())}"
        raise SettingError(f"partition: {spec!r} is not known; {hint}")
    if kind in ("iid", "domain"):
        if colon:
            raise SettingError(f"partition: {kind!r} takes no value, but got {spec!r}; expected just {kind!r}")
        return PartitionSpec(kind)
    if kind == "dirichlet":
        beta = _number(float, value)
        if beta is None or not math.isfinite(beta) or beta <= 0:
            raise SettingError(
                f"partition: {spec!r} is not allowed; expected a concentration above 0, such as {FORMS[kind]!r}"
            )
        return PartitionSpec(kind, beta=beta)
    if kind == "pathological":
        held = _number(int, value)
        if held is None or held < 1:
            raise SettingError(
                f"partition: {spec!r} is not allowed; expected 1 or more classes per client, such as {FORMS[kind]!r}"
            )
        return PartitionSpec(kind, classes_per_client=held)
    if kind == "by":
        if not value:
            raise SettingError(
                f"partition: {spec!r} is not allowed; expected the name of a column, such as 'by:subject'"
            )
        return PartitionSpec(kind, column=value)
    if not value:
        raise SettingError(
            f"partition: {spec!r} is not allowed; expected the path of a JSON file, such as 'file:clients.json'"
        )
    return PartitionSpec(kind, path=Path(value).expanduser())


def _number(kind: Callable[[str], Any], text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        return None
