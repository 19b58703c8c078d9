"""The guarantee holds by construction: no method sees more than the noisy sum, whose noise is as large as stated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fedl2g
from fedl2g.errors import SettingError
from fedl2g.experiment import Experiment
from fedl2g.federation import Federation
from fedl2g.methods.base import ClientHalf, Combined, Options, ServerHalf, Traits
from fedl2g.methods.registry import Method, get_method
from fedl2g.payload import Payload, Specification, class_vector_spec
from fedl2g.privacy.accounting import epsilon_spent
from fedl2g.round.sampler import Poisson
from fedl2g.runs.directory import RunDirectory
from method_settings import BUILT_IN, without_warmup
from puppets import Puppets, puppet_federation

CLASSES, FEATURES = 60, 64  # so many that a deviation is measured to 2 %
Z, CLIP, CLIENTS, RATE = 0.7, 2.0, 12, 0.5
EXPECTED = RATE * CLIENTS
SENDING = ["lg-fedavg", "fedgh", "fml", "fedmrl", "feddistill", "fedproto", "fedtgp", "fedl2g-l", "fedl2g-f"]
PLACES = ["server", "client"]


def test_every_built_in_method_is_protected_or_refused_or_sends_nothing() -> None:
    refused = []
    for name in (name for name in BUILT_IN if name not in SENDING):
        if get_method(name).traits.uploads == "nothing" and not get_method(name).traits.raw_replies:
            continue
        with pytest.raises(SettingError, match=r"privacy.clip: .* (reads individual replies|compresses its uploads)"):
            _experiment(name, "server")
        refused.append(name)
    assert "fedkd" in refused
    for name in SENDING:
        traits = get_method(name).traits
        assert traits.uploads != "nothing"
        assert not traits.raw_replies
        assert not traits.compressed


def _experiment(method: str | dict[str, Any], noise: str, **settings: Any) -> Experiment:
    return Experiment(
        **{
            "method": method,
            "models": "small_cnn",
            "clients": CLIENTS,
            "participation": RATE,
            "rounds": 1,
            "evaluate_every": 100,
            "patience": 0,
            "seed": 2,
            "privacy": {"clip": CLIP, "noise_multiplier": Z, "noise": noise},
            **settings,
        }
    )


def _speaker(method: str) -> Any:
    """Clients whose uploads are known: class vectors for some of the classes, or a network that has moved."""
    network = get_method(method).traits.uploads == "network"
    width = CLASSES if method in ("feddistill", "fedl2g-l") else FEATURES

    def say(client: int, round: int, received: Payload) -> Payload:
        generator = torch.Generator().manual_seed(1000 * round + client)
        if network:
            return {n: t + 0.1 * torch.randn(t.shape, generator=generator) for n, t in received.items()}
        ids = torch.arange(client % 3, CLASSES, 3)
        return {"ids": ids, "rows": torch.randn(len(ids), width, generator=generator)}

    return say


def _watched(experiment: Experiment, say: Any) -> tuple[Federation, Puppets, list[Combined]]:
    federation, engine = puppet_federation(experiment, say, classes=CLASSES, feature_dim=FEATURES)
    seen: list[Combined] = []
    update = federation.server.update

    def watched(round: int, combined: Combined) -> None:
        seen.append(combined)
        update(round, combined)

    federation.server.update = watched  # type: ignore[method-assign]
    return federation, engine, seen


def _dense(upload: Payload, received: Payload) -> torch.Tensor:
    """An upload as one vector: a row for every class, or the change of the network, tensor after tensor."""
    if "ids" not in upload:
        return torch.cat([(upload[name].double() - received[name].double()).flatten() for name in received])
    rows = torch.zeros(CLASSES, upload["rows"].shape[1], dtype=torch.float64)
    rows[upload["ids"]] = upload["rows"].double()
    return rows.flatten()


def _clean_sum(engine: Puppets, say: Any, received: Payload, round: int = 1) -> torch.Tensor:
    """The sum of the clipped uploads over q N, from the formula of the guarantee."""
    vectors = [_dense(say(client, round, received), received) for client in engine.trained[round]]
    return sum(vector * min(1.0, CLIP / float(vector.norm())) for vector in vectors) / EXPECTED  # type: ignore[return-value]


def _is_the_stated_noise(noise: torch.Tensor, deviation: float) -> None:
    assert len(noise) > 3000
    assert float(noise.std()) == pytest.approx(deviation, rel=0.05)
    assert abs(float(noise.mean())) < 4 * deviation / len(noise) ** 0.5
    assert float((noise.abs() < deviation).double().mean()) == pytest.approx(0.6827, abs=0.04)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("method", SENDING)
def test_a_method_gets_the_sum_with_the_stated_noise_and_nothing_else(method: str, place: str) -> None:
    say = _speaker(method)
    federation, engine, seen = _watched(_experiment(without_warmup(method), place), say)
    received = federation.server.broadcast(1)
    federation.run()
    (combined,) = seen
    participants = len(engine.trained[1])
    assert participants > 2
    deviation = Z * CLIP / EXPECTED * (1 if place == "server" else participants**0.5)
    assert combined.replies == ()
    expected = {"network": set(received), "class vectors": {"ids", "rows"}}[get_method(method).traits.uploads]
    assert set(combined.payload) - {"weights"} == expected
    if "ids" in combined.payload:  # who has which class does not show
        assert combined.payload["ids"].tolist() == list(range(CLASSES))
        assert set(combined.payload.get("weights", torch.ones(1)).tolist()) == {1.0}
    _is_the_stated_noise(_dense(combined.payload, received) - _clean_sum(engine, say, received), deviation)
    for client, sent in engine.sent[1].items():
        for upload in (sent, say(client, 1, received)):
            for name, tensor in upload.items():
                if tensor.is_floating_point():
                    assert not torch.equal(tensor, combined.payload[name])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("method", [name for name in SENDING if name not in ("fedgh", "fedtgp")])  # which train on it
def test_what_the_server_holds_has_the_stated_noise(method: str, place: str) -> None:
    say = _speaker(method)
    options: Any = {"name": method, "server_lr": 1.0, "warmup_rounds": 0} if method.startswith("fedl2g") else method
    federation, engine = puppet_federation(_experiment(options, place), say, classes=CLASSES, feature_dim=FEATURES)
    before = federation.server.broadcast(1)
    federation.run()
    held = federation.server.broadcast(2)
    deviation = Z * CLIP / EXPECTED * (1 if place == "server" else len(engine.trained[1]) ** 0.5)
    clean = _clean_sum(engine, say, before)
    if get_method(method).traits.uploads == "network":
        # A variance below 0 becomes 0: what the method makes of it afterwards is its own affair.
        kept = torch.cat([torch.full((t.numel(),), not n.endswith("running_var")) for n, t in before.items()])
        noise = (_dense(held, before) - clean)[kept]
    elif method.startswith("fedl2g"):
        noise = -(held["rows"].double() - before["rows"].double()).flatten() - clean
    else:
        noise = _dense(held, {}) - clean
    _is_the_stated_noise(noise, deviation)


class RecordingServer(ServerHalf[Options]):
    """Notes all it is ever given."""

    def __init__(self, options: Options, task: Any) -> None:
        super().__init__(options, task)
        self.seen: dict[int, Combined] = {}

    def expected(self) -> Specification:
        return class_vector_spec(self.task.classes, FEATURES, self.task.dtype)

    def update(self, round: int, combined: Combined) -> None:
        self.seen[round] = combined


RECORDING = Method("recording", Options, RecordingServer, ClientHalf, Traits(uploads="class vectors"))


@pytest.mark.parametrize("place", PLACES)
def test_not_even_a_single_participant_is_seen(place: str) -> None:
    """Rounds with none, one and more participants: what arrives has the same form, and the noise of the guarantee."""
    say = _speaker("fedproto")
    experiment = _experiment("test_privacy_guarantee:RECORDING", place, rounds=40, participation=0.15)
    federation, engine = puppet_federation(experiment, say, classes=CLASSES, feature_dim=FEATURES)
    federation.run()
    server = federation.server
    assert isinstance(server, RecordingServer)
    sizes = {round: len(clients) for round, clients in engine.trained.items()}
    assert {0, 1, 2} <= set(sizes.values())
    assert set(server.seen) == {round for round, size in sizes.items() if size or place == "server"}
    for round, combined in server.seen.items():
        assert combined.replies == ()
        assert set(combined.payload) == {"ids", "rows"}
        assert combined.payload["ids"].tolist() == list(range(CLASSES))
        # The clean sum over q N = 1.8 in place of 6.
        clean = _clean_sum(engine, say, {}, round) * EXPECTED / 1.8 if sizes[round] else torch.zeros(CLASSES * FEATURES)
        times = 1 if place == "server" else sizes[round] ** 0.5
        _is_the_stated_noise(_dense(combined.payload, {}) - clean, Z * CLIP / 1.8 * times)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"privacy": {"clip": 1.0}}, "neither of privacy.epsilon and privacy.noise_multiplier"),
        (
            {"privacy": {"clip": 1.0, "epsilon": 1.0, "noise_multiplier": 1.0}},
            "both of privacy.epsilon and",
        ),
        ({"privacy": {"max_epsilon": 1.0}}, "without privacy.clip"),
        ({"privacy": {"clip": 1.0, "epsilon": 1.0}, "method": "fedkd"}, "fedkd compresses its uploads"),
        ({"privacy": {"clip": 1.0, "epsilon": 1.0}, "aggregation": "median"}, "use mean"),
        (
            {"privacy": {"clip": 1.0, "epsilon": 1.0}, "availability": {"deadline": 2.0, "late": "use"}},
            "use drop",
        ),
        ({"privacy": {"clip": -1.0, "epsilon": 1.0}}, "privacy.clip"),
    ],
)
def test_what_cannot_be_guaranteed_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Experiment(**settings)


TINY: dict[str, Any] = {
    "samples": 100,
    "image_size": 16,
    "partition": "iid",
    "models": "small_cnn",
    "clients": 4,
    "participation": 0.5,
    "rounds": 3,
    "patience": 0,
    "evaluate_every": 3,
}


@pytest.mark.parametrize("method", ["local", "lg-fedavg", "fedgh", "feddistill", "fedproto", "fedtgp", "fedl2g-l"])
def test_a_run_records_what_it_spent(method: str, tmp_path: Path) -> None:
    experiment = Experiment(
        **TINY, method=without_warmup(method), privacy={"clip": 1.0, "epsilon": 5.0, "denominator": "counted"}
    )
    result = fedl2g.run(experiment, tmp_path / "run")
    rounds = RunDirectory.open(tmp_path / "run").history()[1:]
    spent = [record.privacy["epsilon"] for record in rounds]
    assert spent == sorted(spent)
    assert result.epsilon == spent[-1]
    assert result.delta == 1e-5
    if method == "local":
        assert spent == [0.0] * 3
    else:
        assert 4.9 < spent[-1] <= 5.0
        assert [record.participants for record in rounds] == [Poisson(experiment).draw(r) for r in (1, 2, 3)]


def test_a_run_stops_before_it_spends_too_much(tmp_path: Path) -> None:
    once = epsilon_spent(1.0, 1.0, 1, 1e-5)
    twice = epsilon_spent(1.0, 1.0, 2, 1e-5)
    settings = {"clip": 1.0, "noise_multiplier": 1.0, "max_epsilon": (once + twice) / 2, "noise": "client"}
    experiment = Experiment(**{**TINY, "participation": 1.0}, method="feddistill", privacy=settings)
    result = fedl2g.run(experiment, tmp_path / "run")
    assert (result.status, result.rounds) == ("stopped early", 1)
    assert result.epsilon == once
    history = RunDirectory.open(tmp_path / "run").history()
    assert history[-1].loss is None  # the training loss would say what the noise hides
