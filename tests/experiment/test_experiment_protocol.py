"""The protocols: ours, and the authors', with which published numbers can be compared like for like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fedl2g.engines.host import Host
from fedl2g.experiment import Experiment
from fedl2g.experiment.protocol import Choices
from fedl2g.methods.fedl2g import FedL2GClient
from fedl2g.setup import Setup, prepare

CPU = torch.device("cpu")
PAPER = Choices(reshuffle=False, equal_start=True, partition_seed=1, quiz="first")


@pytest.fixture
def host_of(tiny: Callable[..., Experiment]) -> Callable[..., Host]:
    def make(**settings: Any) -> Host:
        return Host(prepare(tiny(**{"models": "small_resnet,small_cnn", **settings})), CPU)

    return make


def test_a_protocol_decides_what_is_not_given() -> None:
    assert Experiment(seed=7).choices == Choices(True, equal_start=False, partition_seed=7, quiz="fixed")
    assert Experiment(seed=7, protocol="paper").choices == PAPER
    mixed = Experiment(protocol="paper", reshuffle=True, equal_start=False, partition_seed=0)
    assert mixed.choices == Choices(True, equal_start=False, partition_seed=0, quiz="first")


def test_the_protocol_is_part_of_the_identity_by_what_it_chooses() -> None:
    ours, paper = Experiment(), Experiment(protocol="paper")
    assert ours.fingerprint != paper.fingerprint
    spelled = Experiment(
        reshuffle=False, equal_start=True, partition_seed=1, method={"name": "fedl2g-f", "quiz": "first"}
    )
    assert spelled.fingerprint == paper.fingerprint
    undone = Experiment(
        protocol="paper",
        reshuffle=True,
        equal_start=False,
        partition_seed=0,
        method={"name": "fedl2g-f", "quiz": "fixed"},
    )
    assert undone.fingerprint == ours.fingerprint
    # One difference is enough.
    assert Experiment(protocol="paper", reshuffle=True).fingerprint != paper.fingerprint
    assert (
        Experiment(protocol="paper", seed=1, method="local").fingerprint
        != Experiment(seed=1, method="local").fingerprint
    )


def test_experiment_files_keep_what_was_given() -> None:
    text = Experiment(protocol="paper", equal_start=False).to_toml()
    assert 'protocol = "paper"' in text
    assert "equal_start = false" in text
    assert "reshuffle =" not in text  # so that another protocol in the file decides it anew
    assert Experiment.from_toml(text, {"protocol": "ours"}).choices.reshuffle


def test_trials_of_the_paper_share_one_partition(tiny: Callable[..., Experiment]) -> None:
    def of(**settings: Any) -> Any:
        return prepare(tiny(**settings)).partition

    assert of(seed=5, protocol="paper") == of(seed=6, protocol="paper") == of(seed=1)
    assert of(seed=5) != of(seed=6)
    assert of(seed=5, partition_seed=6) == of(seed=6)
    shared = {"protocol": "paper", "validation_fraction": 0.2}
    assert of(seed=5, **shared) == of(seed=6, **shared)  # the samples held out for validation, too


def state_of(host: Host, client: int) -> dict[str, Tensor]:
    return dict(host.half(client).state.state_dict())


@pytest.mark.parametrize("method", ["local", "fedkd", "fedmrl"])
def test_clients_of_one_architecture_start_equal(host_of: Callable[..., Host], method: str) -> None:
    """Clients 0 and 2 have small_resnet, 1 and 3 small_cnn; private maps and projectors start equal, too."""
    host = host_of(method=method, protocol="paper")
    for one, other in ((0, 2), (1, 3)):
        first, second = state_of(host, one), state_of(host, other)
        assert all(torch.equal(first[name], second[name]) for name in first)
    own = host_of(method=method)
    first, second = state_of(own, 0), state_of(own, 2)
    assert not torch.equal(first["model.head.weight"], second["model.head.weight"])
    # A trial is still a trial: the seed changes the weights that a whole architecture starts with.
    again = state_of(host_of(method=method, protocol="paper", seed=9), 0)
    assert not torch.equal(state_of(host, 0)["model.head.weight"], again["model.head.weight"])


def fedl2g_half(host: Host, client: int) -> FedL2GClient:
    half = host.half(client)
    assert isinstance(half, FedL2GClient)
    return half


def test_the_quiz_is_the_first_batch(host_of: Callable[..., Host]) -> None:
    host = host_of(protocol="paper")
    for client in range(4):
        half, train = fedl2g_half(host, client), host.setup.partition.train[client].tolist()
        size = min(10, len(train) // 2)
        assert half.quiz_set.indices.tolist() == train[:size]
        assert half.study_set.indices.tolist() == train[size:]
    train = host.setup.partition.train[0].tolist()
    other = fedl2g_half(host_of(protocol="paper", method__quiz="fixed"), 0).quiz_set.indices.tolist()
    assert other != train[: len(other)]
    first = fedl2g_half(host_of(partition_seed=1, method__quiz="first"), 0).quiz_set.indices.tolist()
    assert first == train[: len(first)]


def test_samples_keep_the_order_of_the_partition(host_of: Callable[..., Host], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every epoch and round goes through the train set in the same order, without the incomplete last batch."""
    host = host_of(protocol="paper", method="local", local_epochs=2)
    half = host.half(0)
    seen: list[list[int]] = []
    original = half.client.train_set.batch

    def recorded(positions: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(half.client.train_set.indices[positions].tolist())
        return original(positions)

    monkeypatch.setattr(half.client.train_set, "batch", recorded)
    for round in (1, 2):
        half.train(round, {})
    train = host.setup.partition.train[0].tolist()
    full = [train[start : start + 10] for start in range(0, len(train) // 10 * 10, 10)]
    assert len(full) > 1
    assert seen == full * 4


def test_setup_and_workers_agree(tiny: Callable[..., Experiment]) -> None:
    setup = prepare(tiny(protocol="paper"))
    assert Setup.from_description(setup.describe()).task == setup.task
