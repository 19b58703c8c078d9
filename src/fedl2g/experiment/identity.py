"""What makes two experiments the same: every setting but how the run is carried out (light: no pydantic here)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

SITES = "sites"
"""Stands for the data in a deployment, where it stays at the sites: the dataset's name and its fingerprint."""

_NO_PART = ("execution",)  # tables whose settings change no number


def belongs(name: str) -> bool:
    """Whether a setting, given by its dotted name, is part of an experiment's identity."""
    return name.partition(".")[0] not in _NO_PART


def sampler_in_use(sampler: str | None, *, protected: bool) -> str:
    """The sampler that an experiment uses; one that names none and one that names the default are the same."""
    return sampler or ("poisson" if protected else "uniform")


def fingerprint(settings: Mapping[str, Any]) -> str:
    """A name for the numbers of a run: equal for experiments that give equal results."""
    kept = {name: value for name, value in settings.items() if belongs(name)}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
