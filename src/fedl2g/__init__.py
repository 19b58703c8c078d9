"""Heterogeneous federated learning: clients with different networks learn together through guiding vectors.

>>> import fedl2g
>>> result = fedl2g.run(fedl2g.Experiment(method="fedl2g-f", rounds=60))
>>> result.best_accuracy, result.best_round
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from fedl2g.version import __version__

if TYPE_CHECKING:
    from fedl2g.api.comparison import ComparedMethods
    from fedl2g.api.data import Data, data
    from fedl2g.api.result import Result
    from fedl2g.api.running import compare, load, resume, run
    from fedl2g.datasets import load_dataset, make_partition
    from fedl2g.engines.base import Engine, register_engine
    from fedl2g.experiment import Execution, Experiment
    from fedl2g.federation import Observer
    from fedl2g.learning.guidance import guiding_gradient
    from fedl2g.methods.base import ClientHalf, Combined, Reply, ServerHalf, Trained, Traits
    from fedl2g.methods.options import Options
    from fedl2g.methods.registry import register_method
    from fedl2g.payload import Payload
    from fedl2g.round.record import RoundRecord
    from fedl2g.round.rules import register_rule
    from fedl2g.round.sampler import Sampler, register_sampler
    from fedl2g.runs.result import RunResult

_HOMES = {
    "ClientHalf": "methods.base",
    "Combined": "methods.base",
    "ComparedMethods": "api.comparison",
    "Data": "api.data",
    "Engine": "engines.base",
    "Execution": "experiment",
    "Experiment": "experiment",
    "Observer": "federation",
    "Options": "methods.options",
    "Payload": "payload",
    "Reply": "methods.base",
    "Result": "api.result",
    "RoundRecord": "round.record",
    "RunResult": "runs.result",
    "Sampler": "round.sampler",
    "ServerHalf": "methods.base",
    "Trained": "methods.base",
    "Traits": "methods.base",
    "compare": "api.running",
    "data": "api.data",
    "guiding_gradient": "learning.guidance",
    "load": "api.running",
    "load_dataset": "datasets",
    "make_partition": "datasets",
    "register_engine": "engines.base",
    "register_method": "methods.registry",
    "register_rule": "round.rules",
    "register_sampler": "round.sampler",
    "resume": "api.running",
    "run": "api.running",
}

__all__ = [
    "ClientHalf",
    "Combined",
    "ComparedMethods",
    "Data",
    "Engine",
    "Execution",
    "Experiment",
    "Observer",
    "Options",
    "Payload",
    "Reply",
    "Result",
    "RoundRecord",
    "RunResult",
    "Sampler",
    "ServerHalf",
    "Trained",
    "Traits",
    "__version__",
    "compare",
    "data",
    "guiding_gradient",
    "load",
    "load_dataset",
    "make_partition",
    "register_engine",
    "register_method",
    "register_rule",
    "register_sampler",
    "resume",
    "run",
]


def __getattr__(name: str) -> object:
    """Import public names on first use: `fedl2g --help` must not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedl2g' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fedl2g.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
