"""An engine over a grid in this process, and what tests of it do again and again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from fake_grid import FakeSimulation, corrupting, honest
from flwr.app import Array, ArrayRecord, RecordDict

from fedl2g.engines.base import Absent
from fedl2g.engines.flower.simulation import SimulationEngine
from fedl2g.federation import Federation
from fedl2g.methods.base import Reply
from fedl2g.methods.registry import get_method
from fedl2g.payload import Payload, to_bytes
from fedl2g.setup import Setup

Open = Callable[[Setup], tuple[SimulationEngine, FakeSimulation]]


def void(_: object) -> None:
    """For expressions used as statements, and for checks that accept everything."""


def train(engine: SimulationEngine, round: int = 1) -> list[Reply | Absent]:
    """What three clients answer to a round of training."""
    return list(engine.train(round, [0, 1, 2], broadcast(engine.setup), void))


def broadcast(setup: Setup) -> Payload:
    return get_method(setup.experiment.method.name).server(setup.experiment.method, setup.task).broadcast(1)


def federation(setup: Setup, engine: Any) -> Federation:
    server = get_method(setup.experiment.method.name).server(setup.experiment.method, setup.task)
    return Federation(setup.experiment, server, engine)


def clients(answers: list[Reply | Absent]) -> tuple[list[int], list[int]]:
    """Who replied and who did not."""
    replied = sorted(a.client for a in answers if isinstance(a, Reply))
    return replied, sorted(a.client for a in answers if isinstance(a, Absent))


def put_payload(records: RecordDict, payload: Payload) -> None:
    """Put another payload in the place of a reply's own."""
    data = to_bytes(payload)
    records["payload"] = ArrayRecord({"payload": Array("uint8", (len(data),), "safetensors", data)})


def rows(**changes: Any) -> Payload:
    """A payload of class vectors, with parts replaced."""
    return {"ids": torch.tensor([0, 1]), "rows": torch.zeros(2, 512)} | changes


def nothing_usable(fake: FakeSimulation, times: int | None = None) -> None:
    """All nodes answer with NaN: always, or so many times."""
    for client, node in enumerate(fake.grid.nodes.values()):
        left = itertools.count() if times is None else iter(range(times))

        def corrupt(records: RecordDict, left: Iterator[int] = left) -> None:
            if next(left, None) is not None:
                put_payload(records, rows(rows=torch.full((2, 512), float("nan"))))

        node.handle = corrupting(honest(fake.root, client), corrupt)
