"""Clients without networks: they answer what a test says, through the real stages of an upload."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from fedl2g.engines.base import Answer, Check, Evaluation
from fedl2g.experiment import Experiment
from fedl2g.federation import Federation, Observer
from fedl2g.learning.client import Task
from fedl2g.methods.base import Reply, Report, ServerHalf
from fedl2g.methods.registry import get_method
from fedl2g.payload import Payload
from fedl2g.schema import image_schema
from fedl2g.uploads.stage import Upload
from fedl2g.uploads.stages import upload_stages

Say = Callable[[int, int, Payload], Payload | Answer]
"""What a client sends in a round in which it received this; an answer in place of a payload passes no stage."""


def number_and_round(client: int, round: int, received: Payload) -> Payload:
    """A row of class 0 that says who sent it when."""
    return {"ids": torch.tensor([0]), "rows": torch.tensor([[float(client), float(round)]])}


class Puppets:
    """An engine whose clients answer in another order than they were asked; it notes who trained, and what was sent."""

    lanes = 1
    retries = False

    def __init__(self, experiment: Experiment, server: ServerHalf[Any], say: Say) -> None:
        self.say = say
        self.stages = upload_stages(experiment, server.task.classes)
        self.codec = get_method(experiment.method.name).traits.codec
        self.expected = server.expected()
        self.trained: dict[int, list[int]] = {}
        self.sent: dict[int, dict[int, Payload]] = {}

    def train(self, round: int, clients: Sequence[int], payload: Payload, check: Check) -> Iterator[Answer]:
        self.trained[round] = list(clients)
        sent = self.sent[round] = {}
        for client in reversed(clients):
            said = self.say(client, round, payload)
            if not isinstance(said, dict):
                yield said
                continue
            upload = self.stages.apply(Upload(client, round, said, Report(5, 1, 0.5, 1.0), payload, self._decode))
            sent[client] = upload.payload
            yield Reply(client, upload.payload, upload.report)

    def _decode(self, payload: Payload) -> Payload:
        return self.codec.decode(payload, self.expected)

    def evaluate(self, clients: Sequence[int], payload: Payload) -> list[Evaluation]:
        return [Evaluation(client, 10, client % 10, {}) for client in clients]

    def save(self, directory: Path) -> None: ...
    def restore(self, directory: Path | None) -> None: ...
    def revive(self) -> None: ...
    def close(self) -> None: ...


def server_of(experiment: Experiment, *, classes: int = 2, feature_dim: int = 8) -> ServerHalf[Any]:
    """The server of an experiment whose data have so many classes."""
    task = Task(
        classes=classes,
        inputs=image_schema(1, 16, 16),
        seed=experiment.seed,
        rounds=experiment.rounds,
        auxiliary="small_cnn",
        feature_dim=feature_dim,
    )
    return get_method(experiment.method.name).server(experiment.method, task)


def puppet_federation(
    experiment: Experiment,
    say: Say = number_and_round,
    *observers: Observer,
    classes: int = 2,
    feature_dim: int = 8,
) -> tuple[Federation, Puppets]:
    """A federation of puppets."""
    server = server_of(experiment, classes=classes, feature_dim=feature_dim)
    engine = Puppets(experiment, server, say)
    return Federation(experiment, server, engine, observers), engine  # type: ignore[arg-type]
