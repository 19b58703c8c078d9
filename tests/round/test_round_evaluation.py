"""Evaluation: when, of whom, and what single results come to."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fedl2g.engines.base import Evaluation, Rejected
from fedl2g.errors import SettingError
from fedl2g.experiment import Experiment
from fedl2g.round.evaluation import Evaluator
from fedl2g.round.record import Accuracy, RoundRecord
from puppets import puppet_federation

RESULTS = [Evaluation(0, 10, 5, {"head": 4}), Evaluation(1, 30, 24, {"head": 12}), Evaluation(3, 10, 1, {"head": 0})]


def _evaluator(groups: dict[str, frozenset[int]] | None = None, **settings: Any) -> Evaluator:
    return Evaluator(Experiment(**{"clients": 5, "rounds": 7, "method": "local", **settings}), groups or {})


def test_it_is_due_before_the_first_round_every_few_rounds_and_after_the_last() -> None:
    evaluator = _evaluator(evaluate_every=3)
    assert [round for round in range(8) if evaluator.due(round)] == [0, 3, 6, 7]


def test_results_are_pooled() -> None:
    evaluator = _evaluator({"honest clients": frozenset({0, 3, 4}), "nobody there": frozenset({2})})
    evaluator.collect([*RESULTS, Rejected(2, "its counts do not fit")])
    record = RoundRecord(3, refused={4: "NaN"})
    evaluator.write(record, ())
    shares = [0.5, 0.8, 0.1]
    mean = sum(shares) / 3
    assert record.accuracy is not None
    assert record.accuracy.pooled == 30 / 50
    assert record.accuracy.mean == pytest.approx(mean)
    assert record.accuracy.std == pytest.approx(math.sqrt(sum((share - mean) ** 2 for share in shares) / 3))
    assert record.accuracy.clients == {0: 0.5, 1: 0.8, 3: 0.1}
    assert record.accuracy.others == {"head": 16 / 50, "honest clients": 6 / 20}
    assert record.refused == {2: "its evaluation: its counts do not fit", 4: "NaN"}
    later = RoundRecord(4)
    evaluator.write(later, ())
    assert later == RoundRecord(4)  # a round without evaluation has none


def test_what_a_client_sent_is_said_before_what_its_evaluation_was() -> None:
    evaluator = _evaluator()
    evaluator.collect([Rejected(2, "wrong")])
    record = RoundRecord(3, refused={2: "NaN"})
    evaluator.write(record, ())
    assert record.refused == {2: "NaN"}
    assert record.accuracy is None


def test_one_result_is_a_mean_without_deviation() -> None:
    evaluator = _evaluator()
    evaluator.collect(RESULTS[:1])
    record = RoundRecord(0)
    evaluator.write(record, ())
    assert record.accuracy == Accuracy(0.5, 0.5, 0.0, {0: 0.5}, {"head": 0.4}, {0: 10})


def test_all_are_evaluated_or_a_sample_of_its_own_in_each_round() -> None:
    assert list(_evaluator().due(0)) == list(range(5))
    evaluator = _evaluator(clients=20, evaluate_clients=6)
    drawn = [list(evaluator.due(round)) for round in range(50)]
    assert all(clients == sorted(set(clients)) and len(clients) == 6 for clients in drawn)
    assert {client for clients in drawn for client in clients} == set(range(20))
    assert drawn == [list(_evaluator(clients=20, evaluate_clients=6).due(round)) for round in range(50)]
    assert drawn != [list(_evaluator(clients=20, evaluate_clients=6, seed=1).due(round)) for round in range(50)]


def test_a_sample_is_evaluated_and_recorded() -> None:
    found = []
    for _ in range(2):
        federation, _ = puppet_federation(
            Experiment(method="feddistill", clients=5, rounds=4, evaluate_every=2, evaluate_clients=2)
        )
        federation.run()
        found.append([sorted(r.accuracy.clients) if r.accuracy else None for r in federation.history])
    assert found[0] == found[1]
    assert [clients is not None for clients in found[0]] == [True, False, True, False, True]
    assert all(len(clients) == 2 for clients in found[0] if clients)
    assert len({tuple(clients) for clients in found[0] if clients}) > 1


def test_how_many_are_evaluated() -> None:
    assert Experiment(clients=5, evaluate_clients=0.4).evaluated_per_round == 2
    assert Experiment(clients=5, evaluate_clients=100).evaluated_per_round == 5
    with pytest.raises(SettingError, match="expected a whole number of clients, or a share"):
        Experiment(evaluate_clients=2.5)


def test_honest_clients_are_a_group_of_their_own_under_attack() -> None:
    federation, _ = puppet_federation(Experiment(method="feddistill", clients=10, rounds=1, attack={"share": 0.3}))
    federation.run()
    hostile = set(federation.history[1].hostile)
    honest = [client for client in range(10) if client not in hostile]
    assert len(hostile) == 3
    for record in federation.history:
        assert record.accuracy is not None  # puppet i has i of 10 right
        assert record.accuracy.pooled == 0.45
        assert record.accuracy.others == {"honest clients": sum(honest) / (10 * len(honest))}
