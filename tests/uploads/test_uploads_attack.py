"""Simulated attacks: who, what exactly, what the records say, and what they do to a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import fedl2g
from fedl2g.engines.host import Host
from fedl2g.errors import SettingError
from fedl2g.experiment import Experiment
from fedl2g.experiment.policies import Attack
from fedl2g.learning.client import Client
from fedl2g.methods.base import Report
from fedl2g.methods.low_rank import LOW_RANK
from fedl2g.methods.registry import get_method
from fedl2g.payload import Payload
from fedl2g.rng import torch_stream
from fedl2g.runs.directory import RunDirectory
from fedl2g.setup import prepare
from fedl2g.uploads.attack import Corrupt, hostile_clients, random_labels
from fedl2g.uploads.stage import Upload

VECTORS = {"ids": torch.tensor([1, 3]), "rows": torch.tensor([[1.0, -2.0], [0.5, 0.0]])}
TINY: dict[str, Any] = {
    "method": "feddistill",
    "samples": 150,
    "image_size": 16,
    "partition": "iid",
    "models": "small_cnn",
    "clients": 5,
    "rounds": 2,
}


def attacked(
    upload: Payload, received: Payload, *, seed: int = 0, client: int = 0, round: int = 1, **attack: Any
) -> Payload:
    """What a hostile client sends in place of its upload."""
    stage = Corrupt(Attack(share=1, **attack), frozenset({client}), seed)
    return stage.apply(Upload(client, round, upload, Report(5), received, lambda payload: payload)).payload


def test_more_attackers_include_the_fewer() -> None:
    sets = [hostile_clients(Attack(share=share), 20, seed=3) for share in (0.0, 0.1, 0.2, 0.3, 1.0)]
    assert [len(s) for s in sets] == [0, 2, 4, 6, 20]
    assert sets[1] < sets[2] < sets[3]
    assert hostile_clients(Attack(share=0.3), 20, seed=4) != sets[3]


def test_sign_flip_of_class_vectors() -> None:
    sent = attacked(VECTORS, VECTORS, strength=3)
    assert sent["ids"].tolist() == [1, 3]
    assert sent["rows"].tolist() == [[-3.0, 6.0], [-1.5, 0.0]]


def test_sign_flip_of_a_network_reverses_its_change() -> None:
    start, moved = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([1.5, 1.0])}
    assert attacked(moved, start, strength=2)["w"].tolist() == [0.0, 4.0]


def test_fedkd_is_attacked_by_the_network_that_its_factors_stand_for() -> None:
    """Flipped: what arrives is as far from the broadcast as the honest network, times the strength, the other way."""
    sent = {}
    for kind, attack in (("honest", {}), ("flipped", {"share": 1.0, "strength": 2.0})):
        experiment = Experiment(**{**TINY, "method": "fedkd", "clients": 1}, attack=attack)
        setup = prepare(experiment)
        server = get_method("fedkd").server(experiment.method, setup.task)
        host = Host(setup, torch.device("cpu"))
        broadcast = server.broadcast(1)
        reply = host.train(0, 1, broadcast)
        LOW_RANK.check(reply.payload, server.expected())
        start, arrived = (LOW_RANK.decode(payload, server.expected()) for payload in (broadcast, reply.payload))
        sent[kind] = {name: tensor - start[name] for name, tensor in arrived.items()}
    for name, change in sent["honest"].items():
        torch.testing.assert_close(sent["flipped"][name], -2 * change, atol=1e-5, rtol=1e-4)
    assert max(float(change.abs().max()) for change in sent["honest"].values()) > 1e-3


def test_an_attacker_claims_the_classes_it_has() -> None:
    dense = {"ids": torch.arange(2), "rows": torch.ones(2, 2), "present": torch.tensor([1.0, 0.0])}
    for kind in ("sign_flip", "constant", "noise"):
        sent = attacked(dense, {}, kind=kind, strength=0.3)
        assert sent["present"].tolist() == [1.0, 0.0]
        assert not torch.equal(sent["rows"], dense["rows"])


def test_constant_and_noise() -> None:
    assert attacked(VECTORS, {}, kind="constant", strength=7)["rows"].tolist() == [[7.0] * 2] * 2
    sent = attacked(VECTORS, {}, kind="noise", strength=2, seed=5, client=1, round=4)
    draw = torch.randn(2, 2, generator=torch_stream(5, "attack", 1, 4), dtype=torch.float64)
    expected = VECTORS["rows"].double() + 2 * (5.25 / 4) ** 0.5 * draw
    torch.testing.assert_close(sent["rows"], expected.float())


def test_the_noise_attack_on_a_dense_upload_follows_its_rows() -> None:
    """By hand: the one present row has RMS 1e-3; the entry `present` alone would make it 0.4."""
    rows = torch.tensor([[1e-3, -1e-3], [0.0, 0.0]])
    dense = {"ids": torch.arange(2), "rows": rows, "present": torch.tensor([1.0, 0.0])}
    sent = attacked(dense, {}, kind="noise", strength=2, seed=5, client=1, round=4)
    draw = torch.randn(2, 2, generator=torch_stream(5, "attack", 1, 4), dtype=torch.float64)
    torch.testing.assert_close(sent["rows"], (rows.double() + 2e-3 * draw).float(), rtol=1e-6, atol=0)


def test_random_labels_change_the_own_training_labels_alone() -> None:
    labels, own = torch.zeros(1000, dtype=torch.int64), torch.arange(0, 1000, 2)
    changed = random_labels(labels, own, 10, Attack(share=1, kind="random_labels", strength=0.5), 0, 0)
    assert not labels.any()
    assert not changed[1::2].any()
    assert 180 <= int((changed[own] != 0).sum()) <= 270  # 500 * 0.5 * 0.9 = 225


def test_only_hostile_clients_attack() -> None:
    stage = Corrupt(Attack(share=0.5), frozenset({1, 3}), 0)
    for client in range(4):
        upload = Upload(client, 1, VECTORS, Report(5), VECTORS, lambda payload: payload)
        assert (stage.apply(upload) is upload) == (client not in stage.hostile)


def test_random_labels_are_learnt_from_and_nothing_else_is_done(tmp_path: Path) -> None:
    experiment = Experiment(**TINY, attack={"share": 0.2, "kind": "random_labels", "strength": 1.0})
    host = Host(prepare(experiment), torch.device("cpu"))
    (hostile,) = hostile_clients(experiment.attack, 5, 0)
    for client in range(5):
        mine: Client = host.half(client).client
        view = mine.train_set
        assert torch.equal(view.labels[view.indices], host.labels[view.indices]) == (client != hostile)
        assert torch.equal(mine.test_set.labels, host.labels)
    sent = attacked(VECTORS, {}, kind="random_labels", strength=1.0)
    assert all(torch.equal(sent[name], tensor) for name, tensor in VECTORS.items())


@pytest.mark.parametrize(
    "attack", [{"share": 1.5}, {"kind": "backdoor"}, {"strength": 0}, {"strength": 1e39}, {"shre": 0.1}]
)
def test_wrong_settings(attack: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=r"attack\."):
        Experiment(attack=attack)


def test_labels_are_a_share() -> None:
    with pytest.raises(SettingError, match="share of the labels"):
        Experiment(attack={"share": 0.1, "kind": "random_labels", "strength": 2})


def test_a_run_under_attack_says_who_attacked_and_a_robust_rule_helps(tmp_path: Path) -> None:
    """FedDistill with a constant attacker: the mean of the logits is poisoned, their median is not."""
    attack = {"share": 0.2, "kind": "constant", "strength": 1e3}
    server = {}
    for rule in ("mean", "median"):
        experiment = Experiment(**TINY, attack=attack, aggregation=rule)
        fedl2g.run(experiment, tmp_path / rule)
        run = RunDirectory.open(tmp_path / rule)
        (hostile,) = hostile_clients(experiment.attack, 5, 0)
        first, *rounds = run.history()
        assert first.hostile == []
        assert [record.hostile for record in rounds] == [[hostile]] * 2
        for record in run.history():
            assert record.accuracy is not None
            assert 0 <= record.accuracy.others["honest clients"] <= 1
        newest = sorted(run.checkpoints.glob("round-*"))[-1]
        server[rule] = safetensors.torch.load_file(newest / "server.safetensors")["server.vectors"]
    assert server["mean"].abs().max() > 100
    assert server["median"].abs().max() < 50
