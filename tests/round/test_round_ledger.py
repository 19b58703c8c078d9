"""The privacy budget: what is recorded is what the history says, and no round is played that would overspend."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from fedl2g.experiment import Experiment
from fedl2g.federation import Federation
from fedl2g.privacy.accounting import epsilon_spent
from fedl2g.privacy.mechanism import Mechanism
from fedl2g.round.ledger import Ledger, PrivacyLedger
from fedl2g.round.record import RoundRecord
from puppets import puppet_federation

Z, RATE, DELTA = 0.8, 0.4, 1e-6


def _experiment(method: str = "feddistill", **privacy: Any) -> Experiment:
    return Experiment(
        method=method,
        clients=8,
        participation=RATE,
        rounds=12,
        evaluate_every=100,
        patience=0,
        privacy={"clip": 1.0, "noise_multiplier": Z, "delta": DELTA, **privacy},
    )


def _played(**settings: Any) -> Federation:
    federation, _ = puppet_federation(_experiment(**settings))
    federation.run()
    return federation


def _recomputed(history: list[RoundRecord], noise: str) -> list[float]:
    """From the participants in the records alone: rounds under sampling, or the busiest client's participations."""
    took_part: Counter[int] = Counter()
    spent = []
    for record in history:
        took_part.update(record.participants)
        steps = record.round if noise == "server" else max(took_part.values(), default=0)
        spent.append(epsilon_spent(Z, RATE if noise == "server" else 1.0, steps, DELTA))
    return spent


@pytest.mark.parametrize("noise", ["server", "client"])
def test_the_recorded_epsilon_is_that_of_the_history(noise: str) -> None:
    first, *rounds = _played(noise=noise).history
    assert first.privacy == {}
    assert len(rounds) == 12
    assert [record.privacy["epsilon"] for record in rounds] == _recomputed(rounds, noise)
    assert {record.privacy["delta"] for record in rounds} == {DELTA}
    assert {record.privacy["noise_multiplier"] for record in rounds} == {Z}


@pytest.mark.parametrize("noise", ["server", "client"])
def test_it_ends_before_the_round_that_would_overspend(noise: str) -> None:
    whole = _recomputed(_played(noise=noise).history[1:], noise)
    limit = whole[6]
    stopped = _played(noise=noise, max_epsilon=limit)
    last = max(round for round, epsilon in enumerate(whole, 1) if epsilon <= limit)
    assert 7 <= last < 12
    assert stopped.round == last
    assert stopped.stop_reason == "the privacy budget is spent"
    assert stopped.history[-1].privacy["epsilon"] == limit
    below = _played(noise=noise, max_epsilon=limit * (1 - 1e-9))
    assert below.round == min(round for round, epsilon in enumerate(whole, 1) if epsilon >= limit) - 1


def test_a_method_that_sends_nothing_spends_nothing() -> None:
    experiment = _experiment(method="local", max_epsilon=1e-9)
    federation, _ = puppet_federation(experiment, lambda client, round, received: {})
    federation.run()
    assert [record.privacy["epsilon"] for record in federation.history[1:]] == [0.0] * 12


def test_without_a_guarantee_nothing_is_kept() -> None:
    ledger = Ledger()
    ledger.spend(1, [0, 1])
    assert ledger.reason_to_stop(2, [0]) is None
    assert ledger.state_dict() == ({}, {})
    record = RoundRecord(1)
    ledger.write(record, ())
    assert record == RoundRecord(1)


def _ledger() -> PrivacyLedger:
    mechanism = Mechanism.of(_experiment(noise="client", max_epsilon=epsilon_spent(Z, 1.0, 3, DELTA)))
    assert mechanism is not None
    return PrivacyLedger(mechanism, uploads=True)


def test_participations_count_by_client() -> None:
    ledger = _ledger()
    for round, plan in enumerate(([0, 1], [0], [0, 2]), 1):
        assert ledger.reason_to_stop(round, plan) is None
        ledger.spend(round, plan)
    assert ledger.reason_to_stop(4, [1, 2]) is None  # client 0 took part three times: only it has nothing left
    assert ledger.reason_to_stop(4, [1, 0]) == "the privacy budget is spent"
    assert ledger.reason_to_stop(4, []) is None


def test_it_goes_on_from_what_json_made_of_it() -> None:
    first, second = _ledger(), _ledger()
    for round in (1, 2, 3):
        first.spend(round, [0, 5])
    tensors, values = first.state_dict()
    second.load_state_dict(tensors, json.loads(json.dumps(values)))
    assert second.state_dict() == first.state_dict()
    assert second.reason_to_stop(4, [5]) == "the privacy budget is spent"
    assert second.reason_to_stop(4, [4]) is None
    written = []
    for ledger in (first, second):
        record = RoundRecord(3)
        ledger.write(record, ())
        written.append(record.privacy)
    assert written[0] == written[1]
    assert written[0]["epsilon"] == epsilon_spent(Z, 1.0, 3, DELTA)
