"""Simulated unstable clients: who trains, whose model moves, whose reply counts when; the same after a resume."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import fedl2g
from fedl2g.errors import SettingError
from fedl2g.experiment import Experiment
from fedl2g.experiment.policies import Availability
from fedl2g.federation import Federation
from fedl2g.methods.base import Combined, Reply
from fedl2g.payload import Payload
from fedl2g.round.absence import AWAY, BUSY, DROPPED, LATE, LOST, NOT_JOINED
from fedl2g.round.availability import Schedule
from fedl2g.round.record import RoundRecord
from fedl2g.runs.checkpoint import restore_checkpoint, write_checkpoint
from puppets import Puppets, puppet_federation

CLIENTS = 10


def _federation(rounds: int = 12, **availability: Any) -> tuple[Federation, Puppets]:
    experiment = Experiment(
        method="feddistill", clients=CLIENTS, rounds=rounds, availability=availability, patience=0, evaluate_every=100
    )
    return puppet_federation(experiment)


def _played(**settings: Any) -> tuple[list[RoundRecord], Puppets]:
    federation, engine = _federation(**settings)
    federation.run()
    return federation.history[1:], engine


def test_off_means_off() -> None:
    history, engine = _played()
    assert all(engine.trained[r.round] == list(range(CLIENTS)) for r in history)
    assert not any(r.away or r.late or r.missing for r in history)
    tensors, values = _federation()[0].policies.availability.state_dict()
    assert not tensors
    assert values == {"busy": [], "late": []}


def test_before_training_nothing_moves_and_after_it_the_model_has_moved() -> None:
    before, engine = _played(dropout_before=0.3)
    for record in before:
        assert sorted([*engine.trained[record.round], *record.missing]) == list(range(CLIENTS))
        assert set(record.missing.values()) <= {DROPPED}
        assert set(record.client_losses) == set(engine.trained[record.round])
    after, engine = _played(dropout_after=0.3)
    for record in after:
        assert engine.trained[record.round] == list(range(CLIENTS))
        assert set(record.missing.values()) <= {LOST}
        assert set(record.client_losses) == set(range(CLIENTS)) - set(record.missing)
        assert record.up_bytes == 16 * len(record.client_losses)
    for history in (before, after):
        assert 20 <= sum(len(r.missing) for r in history) <= 52  # 36 of 120 expected


def test_only_unstable_clients_drop_out() -> None:
    history, _ = _played(dropout_before=0.8, unstable_share=0.3)
    assert len({client for r in history for client in r.missing}) == 3


def test_absence_lasts_and_ends() -> None:
    history, engine = _played(rounds=60, leave=0.05, absence_rounds=7)
    for client in range(CLIENTS):
        gone = [r.round for r in history if r.away.get(client) == AWAY]
        assert all(client not in engine.trained[round] for round in gone)
        runs = [g for g in gone if g - 1 not in gone]
        for start in runs:
            length = next(n for n in range(1, 100) if start + n not in gone)
            assert length % 7 == 0 or start + length > 60  # one absence may follow another at once
    assert 0 < sum(len(r.away) for r in history) < 60 * CLIENTS


def test_late_joiners_come_once_and_stay() -> None:
    history, engine = _played(join_share=0.5, join_until=6)
    joined = [[c for c in range(CLIENTS) if r.away.get(c) != NOT_JOINED] for r in history]
    assert len(joined[0]) == 5
    assert all(set(a) <= set(b) for a, b in pairwise(joined))
    assert len(joined[5]) == CLIENTS
    assert [engine.trained[r.round] for r in history] == joined


def test_late_replies_are_used_with_their_weight_when_they_arrive() -> None:
    settings = {"speed_spread": 0.8, "deadline": 1.0, "late": "use", "staleness_power": 1.0}
    history, engine = _played(**settings)
    schedule = Schedule(Availability(**settings), CLIENTS, 0)
    used = [(r, client, asked) for r in history for client, asked in r.late.items()]
    assert used
    for record, client, asked in used:
        delay = record.round - asked
        assert client in engine.trained[asked]
        assert history[asked - 1].missing[client].startswith(LATE)
        assert schedule.outcome(client, asked).delay == delay
        for between in range(asked + 1, record.round + 1):
            assert client not in engine.trained[between]
            assert history[between - 1].away[client] == BUSY
    _, client, asked = used[0]
    assert schedule.weight(1) == 0.5
    assert schedule.weight(3) == 0.25


def test_the_server_weighs_by_staleness() -> None:
    federation, _ = _federation(speed_spread=0.8, deadline=1.0, late="use", staleness_power=1.0)
    seen: list[list[Reply]] = []
    combine = federation.policies.aggregator.combine

    def watched(round: int, replies: Any, broadcast: Payload) -> Combined | None:
        seen.append(list(replies))
        return combine(round, replies, broadcast)

    federation.policies.aggregator.combine = watched  # type: ignore[method-assign]
    federation.run()
    for record, replies in zip(federation.history[1:], seen, strict=True):
        assert [r.client for r in replies] == sorted(r.client for r in replies)
        for reply in replies:
            asked = record.late.get(reply.client, record.round)
            assert reply.payload["rows"].tolist() == [[reply.client, asked]]
            assert reply.weight == 1 / (1 + record.round - asked)
    weights = torch.tensor([r.weight for r in seen[-1]], dtype=torch.float64)
    rows = torch.cat([r.payload["rows"] for r in seen[-1]]).double()
    expected = (rows * weights[:, None]).sum(0) / weights.sum()
    torch.testing.assert_close(federation.server.state_dict()["vectors"][0].double(), expected)


def test_dropped_late_replies_never_count() -> None:
    for settings in ({"late": "drop"}, {"late": "use", "maximum_delay": 1}):
        history, _ = _played(speed_spread=1.5, deadline=1.0, **settings)
        delays = [r.round - asked for r in history for asked in r.late.values()]
        assert set(delays) <= ({1} if settings["late"] == "use" else set())
        assert any(reason.startswith(LATE) for r in history for reason in r.missing.values())


def test_everything_at_once_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """Replies on their way and busy clients are in the checkpoint: stopped anywhere, the run ends the same."""
    settings = {
        "dropout_before": 0.1,
        "dropout_after": 0.1,
        "speed_spread": 1.0,
        "speed_jitter": 0.3,
        "deadline": 1.2,
        "late": "use",
        "leave": 0.05,
        "absence_rounds": 3,
        "join_share": 0.3,
        "join_until": 5,
    }
    whole, _ = _federation(**settings)
    whole.run()
    assert any(r.late for r in whole.history)
    for stop in (1, 4, 8):
        half, _ = _federation(**settings)
        half.experiment = half.experiment.model_copy(update={"rounds": stop})
        half.run()
        half.experiment = whole.experiment
        folder = tmp_path / str(stop)
        write_checkpoint(folder, half)
        resumed, _ = _federation(**settings)
        assert restore_checkpoint(folder, resumed) == stop
        resumed.run()
        assert [_plain(r) for r in resumed.history] == [_plain(r) for r in whole.history]
        for name, tensor in whole.server.state_dict().items():
            assert torch.equal(resumed.server.state_dict()[name], tensor)


def _plain(record: RoundRecord) -> dict[str, Any]:
    skipped = ("accuracy", "server_seconds", "evaluation_seconds")
    return {name: value for name, value in record.to_dict().items() if name not in skipped}


def test_records_survive_json() -> None:
    record = RoundRecord(3, away={1: AWAY}, late={2: 1}, hostile=[4])
    assert RoundRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record


@pytest.mark.parametrize(
    "settings",
    [{"dropout_before": 2}, {"late": "maybe"}, {"speed_spread": 1}, {"join_until": 1}, {"dropuot_after": 0.1}],
)
def test_wrong_settings(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=r"availability\."):
        Experiment(availability=settings)


def test_a_model_moves_exactly_as_the_setting_says(tmp_path: Path) -> None:
    """All drop out: before training every client's model stays as built, after training every one has moved."""
    tiny = {"method": "fedproto", "samples": 100, "image_size": 16, "partition": "iid", "models": "small_cnn"}
    tiny |= {"clients": 2, "rounds": 1}
    saved = {}
    for when in ("dropout_before", "dropout_after"):
        fedl2g.run(Experiment(**tiny, availability={when: 1.0}), tmp_path / when)
        saved[when] = sorted(p.name for p in (tmp_path / when / "checkpoints" / "round-000001").glob("client-*"))
    assert saved["dropout_before"] == []  # a client that never trained has no state of its own
    assert saved["dropout_after"] == ["client-000000.safetensors", "client-000001.safetensors"]
