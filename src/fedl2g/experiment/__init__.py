"""Everything that determines a run: one frozen, validated model, its files, its identity and its explanations."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedl2g.experiment.explanation import default_settings, documented_fields, explain, explain_options
    from fedl2g.experiment.files import flat, overlay, parse_override
    from fedl2g.experiment.identity import SITES
    from fedl2g.experiment.settings import Execution, Experiment

_HOMES = {
    "Execution": "settings",
    "Experiment": "settings",
    "SITES": "identity",
    "default_settings": "explanation",
    "documented_fields": "explanation",
    "explain": "explanation",
    "explain_options": "explanation",
    "flat": "files",
    "overlay": "files",
    "parse_override": "files",
}

__all__ = [
    "SITES",
    "Execution",
    "Experiment",
    "default_settings",
    "documented_fields",
    "explain",
    "explain_options",
    "flat",
    "overlay",
    "parse_override",
]


def __getattr__(name: str) -> object:
    """Import public names on first use: `fedl2g list` reads constants of this package without loading pydantic."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedl2g.experiment' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fedl2g.experiment.{_HOMES[name]}"), name)
