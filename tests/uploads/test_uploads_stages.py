"""The stages of an upload: in which order, built once, and nothing of them on the way from the task to a method."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch

from fedl2g.engines import host as host_module
from fedl2g.engines.inline import InlineEngine
from fedl2g.experiment import Experiment
from fedl2g.learning.client import Task
from fedl2g.methods.base import Report
from fedl2g.methods.registry import get_method
from fedl2g.payload import Payload
from fedl2g.setup import prepare
from fedl2g.uploads.attack import Corrupt
from fedl2g.uploads.dense import Densify
from fedl2g.uploads.noise import AddNoise
from fedl2g.uploads.protection import Protect
from fedl2g.uploads.stage import Stage, Upload
from fedl2g.uploads.stages import Stages, upload_stages

GUARANTEE = {"privacy": {"clip": 1.0, "noise_multiplier": 1.0}}
DENSE = {"privacy": {"dense_uploads": True}}
NOISE = {"noise": {"std": 0.1}}
ATTACK = {"attack": {"share": 0.5, "kind": "constant", "strength": 7.0}}
SENT: Payload = {"ids": torch.tensor([1]), "rows": torch.full((1, 4), 50.0)}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, []),
        (DENSE, [Densify]),
        (NOISE, [AddNoise]),
        (ATTACK, [Corrupt]),
        (GUARANTEE, [Densify, Protect]),
        ({**DENSE, **NOISE}, [Densify, AddNoise]),
        ({**NOISE, **ATTACK}, [AddNoise, Corrupt]),
        ({**ATTACK, **GUARANTEE}, [Densify, Protect, Corrupt]),
        ({**ATTACK, **NOISE, **GUARANTEE}, [Densify, AddNoise, Protect, Corrupt]),
    ],
)
def test_the_order(settings: dict[str, Any], expected: list[type[Stage]]) -> None:
    stages = upload_stages(Experiment(method="feddistill", clients=4, **settings), classes=3)
    assert [type(stage) for stage in stages.stages] == expected


def _sent(client: int, **settings: Any) -> Payload:
    stages = upload_stages(Experiment(method="feddistill", clients=4, **settings), classes=3)
    return stages.apply(Upload(client, 1, SENT, Report(5), {}, lambda payload: payload)).payload


def test_what_the_order_is_for() -> None:
    everything = {**ATTACK, **NOISE, **GUARANTEE}
    hostile = upload_stages(Experiment(clients=4, **ATTACK), 3).stages[0].hostile  # type: ignore[attr-defined]
    assert len(hostile) == 2
    for client in range(4):
        honest = _sent(client, **{**NOISE, **GUARANTEE})
        assert honest["rows"][0].abs().min() > 0  # noise falls on the rows of absent classes too,
        assert 0.99 < float(honest["rows"].norm()) < 1.0  # and what leaves is clipped after it
        sent = _sent(client, **everything)
        if client in hostile:
            assert set(sent["rows"].flatten().tolist()) == {7.0}  # an attacker has no reason to obey
        else:
            assert torch.equal(sent["rows"], honest["rows"])


class Note(Stage):
    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.notes = name, notes

    def prepare(self, client: Any) -> None:
        self.notes.append(f"prepare {self.name}")

    def apply(self, upload: Upload) -> Upload:
        self.notes.append(f"apply {self.name}")
        return upload


def test_stages_run_one_after_the_other() -> None:
    notes: list[str] = []
    stages = Stages([Note("a", notes), Stages([Note("b", notes)]), Note("c", notes)])
    stages.prepare(None)  # type: ignore[arg-type]
    upload = Upload(0, 1, SENT, Report(5), {}, lambda payload: payload)
    assert stages.apply(upload) is upload
    assert notes == [f"{what} {name}" for what in ("prepare", "apply") for name in "abc"]


def test_the_list_is_built_once_and_every_client_is_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[list[str]] = []

    def build(experiment: Experiment, classes: int) -> Stages:
        built.append([])
        return Stages([Note("only", built[-1])])

    monkeypatch.setattr(host_module, "upload_stages", build)
    experiment = Experiment(
        method="local", samples=60, image_size=16, partition="iid", models="small_cnn", clients=3, rounds=2
    )
    engine = InlineEngine(prepare(experiment))
    for round in (1, 2):
        list(engine.train(round, [0, 2], {}, lambda reply: None))
    engine.evaluate(range(3), {})
    engine.close()
    assert len(built) == 1
    assert sorted(built[0]) == ["apply only"] * 4 + ["prepare only"] * 3


def test_a_task_carries_no_policy() -> None:
    """What methods are given cannot differ where only policies and stages do."""
    names = {entry.name for entry in fields(Task)}
    assert not names & {"privacy", "protection", "aggregation", "attack", "availability", "noise", "stages"}
    tiny = {"method": "feddistill", "samples": 60, "image_size": 16, "partition": "iid", "models": "small_cnn"}
    plain = prepare(Experiment(**tiny, clients=3))
    policies = [
        GUARANTEE,
        DENSE,
        NOISE,
        ATTACK,
        {"aggregation": "median"},
        {"availability": {"dropout_before": 0.5, "deadline": 1.0}},
        {"participation": 0.5, "evaluate_clients": 1, "patience": 3},
    ]
    for settings in policies:
        other = prepare(Experiment(**tiny, clients=3, **settings))
        assert other.task == plain.task
        assert other.experiment.method == plain.experiment.method
        server = get_method("feddistill").server(other.experiment.method, other.task)
        assert vars(server).keys() == vars(get_method("feddistill").server(plain.experiment.method, plain.task)).keys()
