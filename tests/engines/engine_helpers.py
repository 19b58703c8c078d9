"""Tiny federations whose clients have networks, and all that two runs of them must agree in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedl2g.engines.inline import InlineEngine
from fedl2g.federation import Federation, Observer
from fedl2g.methods.registry import get_method
from fedl2g.setup import Setup, prepare
from five_clients import tiny


def tiny_setup(**settings: Any) -> Setup:
    return prepare(tiny(**settings))


def inline(setup: Setup, budget: int | None = None, scratch: Path | None = None) -> InlineEngine:
    """An engine whose clients may take so many bytes of memory."""
    engine = InlineEngine(setup, scratch)
    if budget is not None:
        engine.host.clients.budget = budget
    return engine


def federation_of(setup: Setup, engine: Any, *observers: Observer) -> Federation:
    server = get_method(setup.experiment.method.name).server(setup.experiment.method, setup.task)
    return Federation(setup.experiment, server, engine, observers)


def bits(federation: Federation, directory: Path) -> dict[str, Any]:
    """Records, server and clients, byte for byte; times are not compared."""
    directory.mkdir()
    federation.engine.save(directory)
    tensors, values = federation.state_dict()
    return {
        "records": [{k: v for k, v in r.items() if "seconds" not in k} for r in values["history"]],
        "server": {name: tensor.numpy().tobytes() for name, tensor in tensors.items()},
        "clients": {file.name: file.read_bytes() for file in sorted(directory.iterdir())},
    }
