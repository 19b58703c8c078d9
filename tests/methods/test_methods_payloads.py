"""What crosses: the bytes that the table of `docs/fidelity.md` says, and nothing of a client's own network."""

from __future__ import annotations

import math

import pytest
import torch
from method_helpers import CLASSES, FEATURES, World, batches, make_world, samples

from fedl2g.errors import PayloadError, SettingError
from fedl2g.experiment import Experiment
from fedl2g.learning.client import Task
from fedl2g.methods.registry import get_method, method_names
from fedl2g.payload import from_bytes, nbytes, to_bytes
from fedl2g.schema import image_schema
from method_settings import BUILT_IN, without_warmup

MB = 2**20
BYTES, ID = 8, 8  # float64, int64
HEAD = FEATURES * CLASSES + CLASSES
GENERATOR = (32 + CLASSES) * 512 + 4 * 512 + 512 * FEATURES + FEATURES  # two layers with BatchNorm between
CONVOLUTION = 3 * 9 + 3 + 4 * 3  # weight, bias, and BatchNorm's weight, bias, mean, variance


def floats_of_auxiliary(width: int) -> int:
    return CONVOLUTION + width * CLASSES + CLASSES


def trained_classes(world: World, client: int, round: int) -> int:
    return len({label for _, y in batches(world.halves[client], round) for label in y.tolist()})


def held_classes(world: World, client: int) -> int:
    return len(set(samples(world.halves[client])[1].tolist()))


def world_after(method: str, rounds: int = 1) -> World:
    """A world that has played some rounds."""
    options = {**without_warmup(method), **({"sub_feature_dim": 3} if method == "fedmrl" else {})}
    world = make_world(options.pop("name"), **options)
    for round in range(1, rounds + 1):
        world.play(round)
    return world


@pytest.mark.parametrize(
    ("method", "up", "down"),
    [
        ("local", lambda w, i: 0, lambda w: 0),
        ("lg-fedavg", lambda w, i: BYTES * HEAD, lambda w: BYTES * HEAD),
        ("fedgh", lambda w, i: held_classes(w, i) * (BYTES * FEATURES + ID), lambda w: BYTES * HEAD),
        ("fml", lambda w, i: BYTES * floats_of_auxiliary(FEATURES), lambda w: BYTES * floats_of_auxiliary(FEATURES)),
        ("fedmrl", lambda w, i: BYTES * floats_of_auxiliary(3), lambda w: BYTES * floats_of_auxiliary(3)),
        (
            "feddistill",
            lambda w, i: trained_classes(w, i, 1) * (BYTES * CLASSES + ID),
            lambda w: 3 * (BYTES * CLASSES + ID),
        ),
        (
            "fedproto",
            lambda w, i: trained_classes(w, i, 1) * (BYTES * FEATURES + ID),
            lambda w: 3 * (BYTES * FEATURES + ID),
        ),
        (
            "fedtgp",
            lambda w, i: held_classes(w, i) * (BYTES * FEATURES + ID),
            lambda w: CLASSES * (BYTES * FEATURES + ID),  # a prototype of the class that nobody has, too
        ),
        ("fedgen", lambda w, i: BYTES * HEAD + ID * CLASSES, lambda w: BYTES * (HEAD + GENERATOR) + ID * CLASSES),
    ],
)
def test_bytes(method: str, up, down) -> None:
    world = world_after(method)
    assert [nbytes(upload) for upload in world.uploads] == [up(world, client) for client in range(3)]
    assert nbytes(world.server.broadcast(2)) == down(world)


def test_class_vectors_are_empty_before_the_first_round() -> None:
    for method in ("feddistill", "fedproto", "fedtgp"):
        assert nbytes(make_world(method).server.broadcast(1)) == 0


def test_fedkd_sends_no_more_than_fml_and_the_same_when_it_cannot_save() -> None:
    whole = BYTES * floats_of_auxiliary(FEATURES)
    saved = make_world("fedkd", energy_start=0.3)
    saved.play(1)
    assert all(nbytes(upload) < whole for upload in saved.uploads)
    exact = make_world("fedkd", energy_start=1.0, energy_end=1.0)
    exact.play(1)
    assert all(nbytes(upload) <= whole for upload in exact.uploads)


@pytest.mark.parametrize(
    ("method", "megabytes"), [("lg-fedavg", 3.91), ("fml", 70.55), ("fedkd", 70.55), ("fedmrl", 67.62)]
)
def test_megabytes_on_cifar100_with_20_clients(method: str, megabytes: float) -> None:
    known = get_method(method)
    task = Task(classes=100, inputs=image_schema(3, 32, 32), seed=0, rounds=1, auxiliary="cnn4")
    expected = known.server(known.options(), task).expected()
    assert all(spec.dtype == torch.float32 for spec in expected.values())
    floats = sum(math.prod(int(size) for size in spec.shape) for spec in expected.values())
    assert 20 * 4 * floats / MB == pytest.approx(megabytes, abs=0.005)


@pytest.mark.parametrize("method", method_names())
def test_no_payload_holds_a_tensor_of_the_clients_own_network(method: str) -> None:
    world = world_after(method, rounds=2)
    for half, upload in zip(world.halves, world.uploads, strict=True):
        sent = [tensor.flatten().double() for tensor in upload.values()]
        values = torch.cat(sent) if sent else torch.zeros(0, dtype=torch.float64)
        for name, own in half.model.state_dict().items():
            shared = world.traits.shares_head and world.traits.uploads == "network" and name.startswith("head.")
            if own.is_floating_point():
                assert torch.isin(own.flatten(), values).any() == shared, name


@pytest.mark.parametrize("method", method_names())
def test_replies_are_copies(method: str) -> None:
    """Training on, or predicting with what the server sends next, must not change a reply that lies with the server."""
    world = world_after(method)
    before = [{name: tensor.clone() for name, tensor in upload.items()} for upload in world.uploads]
    uploads, sent = world.uploads, world.server.broadcast(2)
    copies = {name: tensor.clone() for name, tensor in sent.items()}
    world.predictions(1, samples(world.halves[0])[0])
    for half in world.halves:
        half.train(2, sent)
    for upload, copy in zip(uploads, before, strict=True):
        assert all(torch.equal(tensor, copy[name]) for name, tensor in upload.items())
    assert all(torch.equal(tensor, copies[name]) for name, tensor in sent.items())


@pytest.mark.parametrize("method", method_names())
def test_a_restored_server_sends_the_same(method: str) -> None:
    """Also which classes have no vector yet."""
    world, fresh = world_after(method, rounds=2), world_after(method, rounds=0)
    fresh.server.load_state_dict(from_bytes(to_bytes(world.server.state_dict())))
    sent, again = world.server.broadcast(3), fresh.server.broadcast(3)
    assert sent.keys() == again.keys()
    assert all(torch.equal(tensor, again[name]) for name, tensor in sent.items())


@pytest.mark.parametrize("method", [name for name in method_names() if name != "local"])
def test_wrong_payloads_are_refused_on_both_sides(method: str) -> None:
    world = world_after(method)
    for check, good in ((world.check, world.uploads[0]), (world.halves[0].check, world.server.broadcast(2))):
        check(good)
        name = next(name for name, tensor in good.items() if tensor.is_floating_point())
        bad = torch.full_like(good[name], torch.nan)
        for wrong in ({**good, name: bad}, {**good, "more": bad}, {}, {**good, name: good[name].float()}):
            with pytest.raises((PayloadError, SettingError)):
                check(wrong)


@pytest.mark.parametrize("method", ["lg-fedavg", "fedgh", "fedgen"])
def test_different_heads_are_refused(method: str) -> None:
    with pytest.raises(SettingError, match="mixes different heads"):
        Experiment(method=method, models="htm10")
    for group in ("htfe8-htc4", "res34-htc4"):
        with pytest.raises(SettingError, match=f"models: '{group}' mixes different heads, but {method} shares one"):
            Experiment(method=method, models=group)
    Experiment(method=method, models="htfe8")
    mixed = make_world(method, models=("method_helpers:tiny_conv", "method_helpers:deep_head"))
    with pytest.raises(SettingError, match=f"models: client 1 has a head of shape.*{method} expects the same head"):
        mixed.play(1)


@pytest.mark.parametrize("method", ["fml", "fedkd", "fedmrl", "feddistill", "fedproto", "fedtgp"])
def test_other_methods_take_different_heads(method: str) -> None:
    Experiment(method=method, models="htm10")
    mixed = make_world(
        method,
        models=("method_helpers:tiny_conv", "method_helpers:deep_head"),
        **({"sub_feature_dim": 3} if method == "fedmrl" else {}),
    )
    before = [[p.detach().clone() for p in half.model.parameters()] for half in mixed.halves]
    mixed.play(1)
    for half, parameters in zip(mixed.halves, before, strict=True):
        assert any(not torch.equal(p, old) for p, old in zip(half.model.parameters(), parameters, strict=True))


def test_order_and_defaults() -> None:
    assert tuple(BUILT_IN) == (
        *("local", "lg-fedavg", "fedgh", "fml", "fedkd", "fedmrl", "feddistill", "fedproto", "fedtgp", "fedgen"),
        *("fedl2g-l", "fedl2g-f"),
    )
    defaults = {name: get_method(name).options().model_dump(exclude={"name"}) for name in BUILT_IN[1:-2]}
    assert defaults == {
        "lg-fedavg": {},
        "fedgh": {"server_lr": 0.01, "server_epochs": 1, "server_batch_size": 10},
        "fml": {"auxiliary": None, "alpha": 0.5, "beta": 0.5},
        "fedkd": {"auxiliary": None, "auxiliary_lr": 0.01, "energy_start": 0.95, "energy_end": 0.98},
        "fedmrl": {"auxiliary": None, "sub_feature_dim": 128},
        "feddistill": {"weight": 1.0, "distance": "cross_entropy"},
        "fedproto": {"weight": 10.0},
        "fedtgp": {
            "weight": 10.0,
            "server_lr": 0.01,
            "server_epochs": 100,
            "server_batch_size": 10,
            "max_margin": 100.0,
        },
        "fedgen": {
            "server_lr": 0.1,
            "server_epochs": 100,
            "server_batch_size": 10,
            "noise_dim": 32,
            "hidden_dim": 512,
        },
    }
    for name in BUILT_IN:
        options = get_method(name).options
        assert options.model_fields["name"].default == name
        assert all(field.description for key, field in options.model_fields.items() if key != "name")
        assert get_method(name).summary
