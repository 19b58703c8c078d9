"""Heterogeneous federated learning: clients with different networks learn together by guiding vectors.

>>> import fedl2g
>>> result = fedl2g.run(fedl2g.Experiment(method="fedl2g-f", rounds=60))
>>> result.best_accuracy, result.best_round
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedl2g.data import load_dataset, make_partition
    from fedl2g.experiment import Execution, Experiment
    from fedl2g.learning.guidance import guiding_gradient
    from fedl2g.methods.registry import register_method
    from fedl2g.runs.result import RunResult
    from fedl2g.runs.runner import resume, run

_HOMES = {
    "Execution": "experiment",
    "Experiment": "experiment",
    "RunResult": "runs.result",
    "guiding_gradient": "learning.guidance",
    "load_dataset": "data",
    "make_partition": "data",
    "register_method": "methods.registry",
    "resume": "runs.runner",
    "run": "runs.runner",
}

__all__ = [
    "Execution",
    "Experiment",
    "RunResult",
    "guiding_gradient",
    "load_dataset",
    "make_partition",
    "register_method",
    "resume",
    "run",
]


def __getattr__(name: str) -> object:
    """Import public names when they are used: `fedl2g --help` must not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedl2g' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fedl2g.{_HOMES[name]}"), name)
