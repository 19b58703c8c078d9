"""Methods are compared where they ran on the same data: the settings that say who has which samples are equal."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedl2g.report.clients import compare_groups
from fedl2g.report.collect import Group, Run
from fedl2g.report.increase import loss_increase
from fedl2g.round.record import Accuracy, RoundRecord
from fedl2g.runs.directory import RunDirectory


def group(method: str, correct: float, status: str = "finished", **settings: object) -> Group:
    """One run of three clients, in which the loss falls."""
    clients = dict.fromkeys(range(3), correct)
    accuracy = Accuracy(correct, correct, 0.0, clients, samples=dict.fromkeys(clients, 10))
    history = [RoundRecord(0), RoundRecord(1, loss=2.0, accuracy=accuracy), RoundRecord(2, loss=1.0)]
    given = {"method.name": method, "seed": 0, "dataset": "digits", "protocol": "ours", **settings}
    return Group(method, (Run(RunDirectory(Path("none")), given, history, status),))


def test_methods_on_the_same_data_are_compared() -> None:
    groups = [group("local", 0.5), group("fedproto", 0.7)]
    ((difference,),) = [one.differences for one in compare_groups(groups)]
    assert difference.difference == pytest.approx(0.2)
    assert set(loss_increase(groups)["relative"]) == {"fedproto"}


@pytest.mark.parametrize(
    ("reference", "other", "verdict"),
    [
        ("finished", "stopped early", "harms"),
        ("finished", "diverged", "harms"),
        ("finished", "running", "no verdict yet"),
        ("finished", "unfinished", "no verdict yet"),
        ("running", "finished", "no verdict yet"),
    ],
)
def test_a_run_that_goes_on_is_compared_without_a_verdict(reference: str, other: str, verdict: str) -> None:
    """After few rounds every method is far below one that has ended; that says nothing about harm."""
    groups = [group("local", 0.9, reference), group("fedproto", 0.1, other)]
    ((difference,),) = [one.differences for one in compare_groups(groups)]
    assert difference.verdict == verdict
    assert ("harms" in difference.sentence) is (verdict == "harms")
    assert ("no verdict before all their runs are over" in difference.sentence) is (verdict != "harms")


@pytest.mark.parametrize(
    "settings", [{"protocol": "paper"}, {"partition_seed": 7}, {"partition": "iid"}, {"test_fraction": 0.5}]
)
def test_methods_on_other_data_are_not(settings: dict[str, object]) -> None:
    groups = [group("local", 0.5), group("fedproto", 0.7, **settings)]
    assert compare_groups(groups) == []
    assert loss_increase(groups)["relative"] == {}
