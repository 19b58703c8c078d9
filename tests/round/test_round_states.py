"""Every policy's state survives: stopped anywhere, through JSON and safetensors, a run ends with the same bits."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import safetensors.torch
import torch

from endings import StopAfter
from fedl2g.errors import Diverged, PayloadError
from fedl2g.experiment import Experiment
from fedl2g.federation import Federation, Observer
from fedl2g.payload import Payload
from method_settings import without_warmup
from puppets import Say, number_and_round, puppet_federation

ROUNDS = 14
Make = Callable[..., Federation]


def _maker(say: Say = number_and_round, **settings: Any) -> Make:
    given = {"method": "feddistill", "clients": 8, "rounds": ROUNDS, "patience": 0, "evaluate_every": 4, **settings}

    def make(*observers: Observer) -> Federation:
        return puppet_federation(Experiment(**given), say, *observers)[0]

    return make


def _bits(federation: Federation) -> dict[str, Any]:
    tensors, values = federation.state_dict()
    values = json.loads(json.dumps(values))
    for record in values["history"]:
        for name in [name for name in record if "seconds" in name]:
            del record[name]
    return {
        "values": values,
        "tensors": {name: tensor.numpy().tobytes() for name, tensor in tensors.items()},
        "stopped": federation.stop_reason,
    }


def _resumed(make: Make, stop: int) -> Federation:
    first = make(StopAfter(stop))
    first.run()
    assert first.round == stop
    tensors, values = first.state_dict()
    file, text = safetensors.torch.save(tensors), json.dumps(values, allow_nan=False)
    second = make()
    second.load_state_dict(safetensors.torch.load(file), json.loads(text))
    return second


def _same_from_everywhere(make: Make) -> Federation:
    whole = make()
    whole.run()
    expected = _bits(whole)
    for stop in range(whole.round):
        again = _resumed(make, stop)
        again.run()
        assert _bits(again) == expected, f"stopped after round {stop}"
    return whole


def test_late_replies_in_flight_and_clients_that_are_busy() -> None:
    late = {"speed_spread": 1.2, "speed_jitter": 0.4, "deadline": 1.0, "late": "use", "staleness_power": 1.0}
    make = _maker(availability={**late, "dropout_before": 0.1, "dropout_after": 0.1, "leave": 0.05, "join_share": 0.3})
    whole = _same_from_everywhere(make)
    flights = {record.round - asked for record in whole.history for asked in record.late.values()}
    assert len(flights) > 1  # some fly for several rounds
    busy = make(StopAfter(ROUNDS - 1))
    busy.run()
    tensors, values = busy.state_dict()
    assert values["policies"]["availability"]["late"]
    assert any(name.startswith("availability.late.") for name in tensors)


@pytest.mark.parametrize("noise", ["server", "client"])
def test_a_ledger_with_a_limit(noise: str) -> None:
    def make(limit: float | None) -> Make:
        privacy = {"clip": 1.0, "noise_multiplier": 1.0, "noise": noise, "max_epsilon": limit}
        return _maker(
            participation=0.4,
            privacy=privacy,
            availability={"dropout_after": 0.3, "deadline": 1.5, "speed_spread": 0.7},
        )

    unlimited = make(None)()
    unlimited.run()
    limit = unlimited.history[8].privacy["epsilon"]
    whole = _same_from_everywhere(make(limit))
    assert whole.stop_reason == "the privacy budget is spent"
    assert 8 <= whole.round < ROUNDS


def _sick(rounds: tuple[int, ...]) -> Make:
    def say(client: int, round: int, received: Payload) -> Payload:
        rows = torch.full((1, 2), float("nan") if round in rounds else float(round))
        return {"ids": torch.tensor([0]), "rows": rows}

    return _maker(say, clients=3, participation=0.34)


def test_an_empty_round_counts_after_an_interruption() -> None:
    """One unusable reply is bad luck, two rounds of it are a diverged training: on either side of an interruption."""
    with pytest.raises(Diverged, match="round 6"):
        _sick((5, 6))().run()
    for stop in range(6):
        with pytest.raises(Diverged, match="round 6"):
            _resumed(_sick((5, 6)), stop).run()
    whole = _same_from_everywhere(_sick((5, 7, 9)))
    assert [r.round for r in whole.history if r.refused] == [5, 7, 9]


def test_attackers_robust_rules_and_samples_of_evaluated_clients() -> None:
    whole = _same_from_everywhere(
        _maker(
            participation=0.5,
            evaluate_every=1,
            evaluate_clients=3,
            attack={"share": 0.4, "kind": "noise", "strength": 2.0},
            noise={"std": 0.1},
            aggregation="median",
        )
    )
    assert any(record.hostile for record in whole.history)


@pytest.mark.parametrize("method", ["fedl2g-l", "lg-fedavg", "fedproto", "fedgh"])
def test_the_server_where_nobody_replied(method: str) -> None:
    """A round without replies leaves the server, and what it says of itself, as it was."""

    def say(client: int, round: int, received: Payload) -> Payload:
        generator = torch.Generator().manual_seed(100 * round + client)
        if "ids" not in received and method != "fedgh":
            return {n: t + 0.1 * torch.randn(t.shape, generator=generator) for n, t in received.items()}
        return {"ids": torch.arange(2), "rows": torch.randn(2, 2 if method == "fedl2g-l" else 8, generator=generator)}

    make = _maker(
        say,
        method=without_warmup(method),
        models="small_cnn",
        participation=0.2,
        availability={"dropout_after": 0.6},
        rounds=10,
    )
    whole = _same_from_everywhere(make)
    silent = [record.round for record in whole.history[1:] if not record.client_losses]
    assert silent
    assert len(silent) < 9
    if method == "fedl2g-l":
        steps = [record.server["guide_step"] for record in whole.history[1:]]
        assert [round for round, step in enumerate(steps, 1) if step == 0] == silent
        assert whole.history[-1].server["guide_distance"] == pytest.approx(sum(steps))


def test_start_over_is_the_start() -> None:
    make = _maker(availability={"speed_spread": 1.2, "deadline": 1.0, "late": "use"})
    federation = make()
    federation.run()
    expected = _bits(federation)
    federation.start_over()
    assert federation.round == 0
    assert not federation.history
    federation.run()
    assert _bits(federation) == expected


@pytest.mark.parametrize(
    "spoil",
    [
        lambda tensors, values: values["policies"].pop("ledger"),
        lambda tensors, values: values["policies"]["inbox"].pop("empty"),
        lambda tensors, values: values["history"].pop(1),
        lambda tensors, values: tensors.pop("server.vectors"),
        lambda tensors, values: tensors.update({"nobody.vectors": torch.zeros(1)}),
        lambda tensors, values: tensors.update({"server.known": torch.zeros(3)}),
        lambda tensors, values: values["policies"]["availability"]["late"][0].update(client=99),
        lambda tensors, values: values["policies"]["availability"]["late"].pop(),
    ],
)
def test_what_is_no_state_is_refused(spoil: Callable[[Any, Any], object]) -> None:
    make = _maker(availability={"speed_spread": 1.2, "deadline": 1.0, "late": "use"})
    first = make(StopAfter(4))
    first.run()
    tensors, values = first.state_dict()
    values = json.loads(json.dumps(values))
    spoil(tensors, values)
    with pytest.raises((ValueError, KeyError, TypeError, IndexError, PayloadError)):
        make().load_state_dict(tensors, values)
