"""The identity of an experiment: every setting except how the run is executed (no pydantic here)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

SITES = "sites"
"""The dataset name and fingerprint in a deployment, where the data stays at the sites."""

_EXCLUDED = ("execution",)  # tables whose settings change no number


def belongs(name: str) -> bool:
    """Whether a setting (a dotted name) is part of an experiment's identity."""
    return name.partition(".")[0] not in _EXCLUDED


def sampler_in_use(sampler: str | None, *, protected: bool) -> str:
    """The sampler of an experiment; naming the default and naming none are the same experiment."""
    return sampler or ("poisson" if protected else "uniform")


def fingerprint(settings: Mapping[str, Any]) -> str:
    """A hash of the settings that determine the results: equal for experiments with equal results."""
    kept = {name: value for name, value in settings.items() if belongs(name)}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
