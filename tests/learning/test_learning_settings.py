"""Optimizers, schedules, augmentation and mixed precision of clients, against torch's own in float64."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedl2g
from fedl2g.engines.host import Host
from fedl2g.engines.residency import state_of
from fedl2g.errors import RunError, SettingError
from fedl2g.experiment import Experiment, explain, overlay
from fedl2g.learning.augmentation import Augmentation
from fedl2g.learning.client import MOMENTS, Client
from fedl2g.learning.settings import Augment, Optimizer, Schedule
from fedl2g.methods.base import ClientHalf
from fedl2g.methods.fedkd import FedKDClient
from fedl2g.rng import torch_stream
from fedl2g.setup import prepare
from method_settings import BUILT_IN, with_warmup

Outcome = Callable[[Path], dict[str, Any]]
Tiny = Callable[..., Experiment]
CPU = torch.device("cpu")
RATE = 0.05
OPTIMIZERS: dict[str, tuple[dict[str, Any], Callable[[Any], torch.optim.Optimizer]]] = {
    "sgd": ({}, lambda p: torch.optim.SGD(p, RATE)),
    "weight decay": ({"weight_decay": 0.1}, lambda p: torch.optim.SGD(p, RATE, weight_decay=0.1)),
    "momentum": (
        {"momentum": 0.9, "weight_decay": 0.1},
        lambda p: torch.optim.SGD(p, RATE, momentum=0.9, weight_decay=0.1),
    ),
    "adamw": (
        {"name": "adamw", "weight_decay": 0.1, "beta1": 0.8, "beta2": 0.95},
        lambda p: torch.optim.AdamW(p, RATE, betas=(0.8, 0.95), weight_decay=0.1),
    ),
}
SCHEDULES: dict[str, tuple[dict[str, Any], Callable[[Any], Any]]] = {
    "constant": ({}, lambda o: torch.optim.lr_scheduler.ConstantLR(o, factor=1.0)),
    "cosine": (
        {"name": "cosine", "final": 0.1},
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=3, eta_min=0.1 * RATE),
    ),
    "step": (
        {"name": "step", "every": 2, "factor": 0.3},
        lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=2, gamma=0.3),
    ),
}


def half_of(method: Any = "local", **settings: Any) -> ClientHalf[Any]:
    """The first client of a tiny federation in float64, without dropout."""
    experiment = Experiment(
        **{
            "method": method,
            "samples": 60,
            "clients": 2,
            "partition": "iid",
            "models": "small_cnn",
            "rounds": 3,
            "client_lr": RATE,
            "precision": "float64",
            **settings,
        }
    )
    return Host(prepare(experiment), CPU).half(0)


def batches(client: Client, round: int) -> list[tuple[Tensor, Tensor]]:
    """The batches of a round, from the definition of the order."""
    samples = len(client.train_set)
    order = torch.randperm(samples, generator=torch_stream(client.task.seed, "order", client.id, round, 0))
    return [client.train_set.batch(order[i : i + 10]) for i in range(0, samples - 9, 10)]


def assert_close(found: nn.Module, expected: nn.Module) -> None:
    for one, other in zip(found.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_three_rounds_with_an_interruption_are_those_of_one_torch_optimizer(optimizer: str, schedule: str) -> None:
    (ours, make), (rates, make_schedule) = OPTIMIZERS[optimizer], SCHEDULES[schedule]
    half = half_of(optimizer=ours, schedule=rates)
    reference = deepcopy(half.model).train()
    torchs = make(reference.parameters())
    scheduler = make_schedule(torchs)
    for round in (1, 2, 3):
        for x, y in batches(half.client, round):
            torchs.zero_grad()
            cross_entropy(reference(x)[1], y).backward()
            torchs.step()
        scheduler.step()
        half.train(round, {})
        assert_close(half.model, reference)
        saved = state_of(half)
        half = half_of(optimizer=ours, schedule=rates)
        half.state.load_state_dict(saved)
    assert (MOMENTS in half.state) == (optimizer in ("momentum", "adamw"))


def test_gradients_are_clipped_before_an_optimizer_of_torch_sees_them() -> None:
    half = half_of(optimizer={"momentum": 0.5, "weight_decay": 0.1})
    reference = deepcopy(half.model).train()
    torchs = torch.optim.SGD(reference.parameters(), RATE, momentum=0.5, weight_decay=0.1)
    client = half.client
    client.fit(1, half.own_loss, [client.optimizer(clip=0.01)])
    for x, y in batches(client, 1):
        torchs.zero_grad()
        cross_entropy(reference(x)[1], y).backward()
        assert nn.utils.clip_grad_norm_(reference.parameters(), 0.01) > 0.01
        torchs.step()
    assert_close(half.model, reference)


def test_networks_received_anew_start_with_fresh_moments_and_private_ones_go_on() -> None:
    half = half_of("fedkd", optimizer={"momentum": 0.9})
    assert isinstance(half, FedKDClient)
    kept = {name.split("/")[1] for name, _ in half.state[MOMENTS].named_buffers()}
    assert kept == {"model", "feature_map"}
    first = half.client.optimizer(half.auxiliary, lr=0.5)
    assert first.lr == 0.5
    for parameter in half.auxiliary.parameters():
        parameter.grad = torch.ones_like(parameter)
    first.step()
    again = half.client.optimizer(half.auxiliary)
    assert not again.optimizer.state
    own = half.client.optimizer()
    buffers = set(map(id, half.state[MOMENTS].buffers()))
    assert own.optimizer.state
    assert all(id(one["momentum_buffer"]) in buffers for one in own.optimizer.state.values())


@pytest.mark.parametrize("method", BUILT_IN)
def test_every_method_trains_with_the_experiments_optimizer_and_rate(method: str) -> None:
    """A rate of zero in the last round of a cosine moves nothing; momentum and AdamW move otherwise than plain SGD."""
    options = with_warmup(method, 0)

    def moved(round: int, **settings: Any) -> dict[str, Tensor]:
        experiment = Experiment(
            method=options, samples=120, clients=2, partition="iid", models="small_cnn", rounds=2, **settings
        )
        setup = prepare(experiment)
        half = Host(setup, CPU).half(0)
        server = fedl2g.methods.get_method(method).server(experiment.method, setup.task)
        half.train(round, server.broadcast(round))
        return {name: p.detach().clone() for name, p in half.model.named_parameters()}

    plain = moved(2)
    for optimizer in ({"momentum": 0.9}, {"name": "adamw"}):
        assert any(not torch.equal(t, plain[name]) for name, t in moved(2, optimizer=optimizer).items())
    nothing = moved(2, schedule={"name": "step", "every": 1, "factor": 1e-30})
    start = moved(2, client_lr=1e-30)
    assert all(torch.equal(tensor, start[name]) for name, tensor in nothing.items())
    assert any(not torch.equal(tensor, plain[name]) for name, tensor in start.items())


def test_the_pseudo_step_stays_plain_sgd_at_the_clients_rate() -> None:
    """The first warm-up round sends what it sends with plain SGD at a constant rate, whatever clients train with."""
    sent = []
    for settings in ({}, {"optimizer": {"name": "adamw"}, "schedule": {"name": "step", "every": 1, "factor": 0.1}}):
        half = half_of({"name": "fedl2g-f", "warmup_rounds": 2}, **settings)
        guide = {"ids": torch.arange(10), "rows": torch.ones(10, 512, dtype=torch.float64)}
        sent.append(half.train(2, guide).payload)
    assert torch.equal(sent[0]["rows"], sent[1]["rows"])


TRAINED = {
    "optimizer": {"name": "adamw", "weight_decay": 0.01},
    "schedule": "cosine",
    "augment": {"flip": True, "crop": 2},
    "amp": "bf16",
}


@pytest.mark.usefixtures("kept_workers")
@pytest.mark.parametrize(
    ("method", "optimizer"),
    [("fedl2g-f", {"name": "adamw", "weight_decay": 0.01}), ("fedmrl", {"momentum": 0.9})],
)
def test_the_same_bits_on_workers_with_little_memory_and_after_an_interruption(
    method: str, optimizer: dict[str, Any], tiny: Tiny, outcome: Outcome, tmp_path: Path
) -> None:
    experiment = tiny(method=with_warmup(method, 1), rounds=3, **{**TRAINED, "optimizer": optimizer})
    fedl2g.run(experiment, tmp_path / "whole")
    whole = outcome(tmp_path / "whole")
    assert any(b"optimizer." in content for content in whole["files"].values())
    for name, how in {"workers": {"engine": "workers"}, "evicted": {"memory_mb": 1}}.items():
        execution = experiment.execution.model_copy(update=how)
        fedl2g.run(experiment.model_copy(update={"execution": execution}), tmp_path / name)
        assert outcome(tmp_path / name) == whole, name
    fedl2g.run(experiment, tmp_path / "resumed")
    for newest in sorted((tmp_path / "resumed" / "checkpoints").iterdir())[-1:]:
        newest.rename(tmp_path / "gone")  # as if the run had been killed after round 2
    (tmp_path / "resumed" / "result.json").unlink()
    fedl2g.resume(tmp_path / "resumed")
    assert outcome(tmp_path / "resumed") == whole


@pytest.mark.parametrize("method", BUILT_IN)
def test_every_method_trains_in_bf16(method: str, tiny: Tiny, tmp_path: Path) -> None:
    result = fedl2g.run(tiny(method=with_warmup(method, 0), rounds=2, amp="bf16", evaluate_every=2), tmp_path / "run")
    assert result.status == "finished"
    assert result.last_accuracy is not None


def test_bf16_computes_in_bfloat16_and_changes_the_last_digits_only() -> None:
    kinds: list[torch.dtype] = []
    found = {}
    for amp in ("off", "bf16"):
        half = half_of(amp=amp, precision="float32")
        half.model.head.register_forward_hook(lambda _module, _inputs, output: kinds.append(output.dtype))
        log = half.train(1, {}).log
        found[amp] = log.cross_entropy
        assert all(p.dtype == torch.float32 for p in half.model.parameters())
    assert set(kinds[: len(kinds) // 2]) == {torch.float32}
    assert set(kinds[len(kinds) // 2 :]) == {torch.bfloat16}
    assert found["off"] != found["bf16"] == pytest.approx(found["off"], rel=0.02)


def test_flips_and_crops_by_hand() -> None:
    """Every image is its own, with a copy of the draws made here."""
    x = torch.arange(6 * 2 * 3 * 4, dtype=torch.float64).reshape(6, 2, 3, 4)
    black = torch.tensor([-1.0, -2.0], dtype=torch.float64).reshape(1, 2, 1, 1)
    found = Augmentation(Augment(flip=True, crop=2), torch_stream(0, "test"), black)(x)
    stream = torch_stream(0, "test")
    flips = torch.rand(6, generator=stream) < 0.5
    corners = torch.randint(5, (2, 6), generator=stream)
    assert 0 < int(flips.sum()) < 6
    for i in range(6):
        image = x[i].flip(2) if flips[i] else x[i]
        for c in range(2):
            for row in range(3):
                for column in range(4):
                    r, k = row + int(corners[0, i]) - 2, column + int(corners[1, i]) - 2
                    inside = 0 <= r < 3 and 0 <= k < 4
                    assert found[i, c, row, column] == (image[c, r, k] if inside else black[0, c, 0, 0])
    last = x.to(memory_format=torch.channels_last)
    again = Augmentation(Augment(crop=2), torch_stream(0, "test"), black)(last)
    assert again.is_contiguous(memory_format=torch.channels_last)


def test_augmentation_changes_training_only_and_differs_between_rounds() -> None:
    half = half_of(augment={"flip": True, "crop": 4}, schedule={"name": "step", "every": 1, "factor": 0.5})
    seen: list[Tensor] = []

    def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(x.clone())
        return half.own_loss(x, y)

    stored = [x for x, _ in half.client.train_set.batches(10)]
    for round in (1, 1, 2):
        half.client.fit(round, loss)
    third = len(seen) // 3
    assert all(torch.equal(a, b) for a, b in zip(seen[:third], seen[third : 2 * third], strict=True))
    assert not torch.equal(seen[0], seen[2 * third])
    assert not torch.equal(seen[0], batches(half.client, 1)[0][0])
    assert float(torch.cat(seen).min()) == -1.0  # black
    assert all(torch.equal(a, b) for a, (b, _) in zip(stored, half.client.train_set.batches(10), strict=True))


def test_shares_of_the_rate_by_hand() -> None:
    assert [Schedule().share(round, 4) for round in (1, 4)] == [1.0, 1.0]
    cosine = Schedule(name="cosine")
    assert [cosine.share(round, 4) for round in (1, 3, 5, 9)] == pytest.approx([1.0, 0.5, 0.0, 0.0], abs=1e-15)
    assert Schedule(name="cosine", rounds=8).share(5, 4) == pytest.approx(0.5)
    steps = Schedule(name="step", every=2, factor=0.5)
    assert [steps.share(round, 9) for round in (1, 2, 3, 4, 5)] == [1.0, 1.0, 0.5, 0.5, 0.25]


def test_what_cannot_be_is_refused_in_a_sentence(tiny: Tiny, tmp_path: Path) -> None:
    for settings, sentence in (
        ({"optimizer": "adam"}, r"^optimizer\.name: 'adam'"),
        ({"optimizer": {"name": "adamw", "momentum": 0.9}}, r"^optimizer: .*adamw has no momentum"),
        ({"optimizer": {"beta1": 0.5}}, r"^optimizer: .*sgd has no beta1"),
        ({"schedule": {"name": "step", "every": 0}}, r"^schedule\.every: 0"),
        ({"amp": "bf16", "precision": "float64"}, r"^amp: bf16 needs precision float32"),
        ({"augment": {"crop": -1}}, r"^augment\.crop: -1"),
    ):
        with pytest.raises(SettingError, match=sentence):
            Experiment(**settings)
    setup = prepare(Experiment(dataset="wine", clients=2, augment={"flip": True}))
    with pytest.raises(
        SettingError, match=r"^augment: flips and crops are for images, but the data are of the kind table"
    ):
        setup.check()
    short = tiny(schedule="cosine", rounds=2, method="local")
    fedl2g.run(short, tmp_path / "run")
    with pytest.raises((SettingError, RunError), match="cosine schedule depend on the number of rounds"):
        fedl2g.run(short.with_rounds(3), tmp_path / "run")
    fixed = tiny(schedule={"name": "cosine", "rounds": 5}, rounds=2, method="local")
    fedl2g.run(fixed, tmp_path / "fixed")
    assert fedl2g.run(fixed.with_rounds(3), tmp_path / "fixed").rounds == 3


def test_a_name_alone_is_a_table_and_defaults_leave_the_fingerprint() -> None:
    assert Experiment(optimizer="adamw").optimizer == Optimizer(name="adamw")
    assert Experiment(schedule="cosine").schedule == Schedule(name="cosine")
    plain = Experiment()
    assert Experiment(optimizer="sgd", schedule="constant", augment={"flip": False}, amp="off") == plain
    assert Experiment(optimizer={"momentum": 0.0}).fingerprint == plain.fingerprint
    mixed = overlay({"optimizer": "adamw"}, {"optimizer.weight_decay": 0.1})
    assert Experiment(**mixed).optimizer == Optimizer(name="adamw", weight_decay=0.1)
    lines = explain("optimizer").splitlines()
    assert lines[0].startswith("How clients take their steps")
    assert [line.partition(":")[0] for line in lines[1:]] == [f"optimizer.{name}" for name in Optimizer.model_fields]
    again = Experiment.from_toml(Experiment(optimizer={"momentum": 0.9}, schedule="step").to_toml())
    assert (again.optimizer.momentum, again.schedule.name) == (0.9, "step")
    assert replace(prepare(plain).task, seed=1).optimizer.plain
