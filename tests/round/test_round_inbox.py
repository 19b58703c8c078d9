"""What cannot be used is refused, logged with its reason, recorded and counted; the others go on."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from fedl2g.engines.base import Evaluation
from fedl2g.errors import Diverged
from fedl2g.experiment import Experiment
from fedl2g.federation import Federation
from fedl2g.learning.client import Task
from fedl2g.methods.base import Reply, Report
from fedl2g.methods.registry import get_method
from fedl2g.payload import Payload
from fedl2g.runs.result import summarise

BROKEN: dict[int, Payload] = {
    1: {"ids": torch.tensor([0]), "rows": torch.tensor([[float("nan"), 0.0]])},
    2: {"ids": torch.tensor([7]), "rows": torch.zeros(1, 2)},
    3: {"ids": torch.tensor([0]), "rows": torch.zeros(1, 2, dtype=torch.float64)},
    4: {"ids": torch.tensor([0]), "rows": torch.zeros(1, 2), "pickle": torch.zeros(1)},
    5: {"ids": torch.tensor([0, 0]), "rows": torch.zeros(2, 2)},
    6: {"rows": torch.zeros(1, 2)},
    7: {"ids": torch.tensor([0]), "rows": torch.zeros(1, 2**20)},
}


class Puppets:
    """Client 0 is sound, the others are not."""

    def __init__(self, sound: bool) -> None:
        self.sound = sound

    def train(self, round: int, participants: Sequence[int], payload: Payload) -> Iterator[Reply]:
        good = {"ids": torch.tensor([0]), "rows": torch.full((1, 2), 4.0)}
        for client in participants:
            upload = BROKEN.get(client, good if self.sound else BROKEN[1])
            yield Reply(client, upload, Report(5, 1, 0.5, 1.0))

    def evaluate(self, clients: Sequence[int], payload: Payload) -> list[Evaluation]:
        return [Evaluation(client, 10, 5, {}) for client in clients]

    def save(self, directory: Path) -> None: ...
    def restore(self, directory: Path | None) -> None: ...
    def revive(self) -> None: ...
    def close(self) -> None: ...


def _federation(sound: bool) -> Federation:
    experiment = Experiment(method="feddistill", clients=8, rounds=3)
    task = Task(2, (1, 8, 8), seed=0, rounds=3, auxiliary="small_cnn")
    return Federation(experiment, get_method("feddistill").server(experiment.method, task), Puppets(sound))


def test_broken_replies_are_refused_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    federation = _federation(sound=True)
    with caplog.at_level(logging.WARNING):
        federation.run()
    for record in federation.history[1:]:
        assert set(record.refused) == set(BROKEN)
        for client, word in {
            1: "NaN",
            2: "class id",
            3: "dtype",
            4: "pickle",
            5: "distinct",
            6: "ids",
            7: "shape",
        }.items():
            assert word in record.refused[client]
    assert federation.server.state_dict()["vectors"].tolist() == [[4.0, 4.0], [0.0, 0.0]]
    assert sum("is refused" in message for message in caplog.messages) == 21
    result = summarise(federation.history, method="feddistill", seed=0, status="finished", run="")
    assert result.refused == 21


def test_a_round_of_nothing_but_broken_replies_ends_the_run() -> None:
    with pytest.raises(Diverged, match="no reply could be used"):
        _federation(sound=False).run()
