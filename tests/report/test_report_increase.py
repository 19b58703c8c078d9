"""The introduction's figure: the loss of every round less its earlier minimum, with each method's accuracy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from fedl2g.report.collect import Group, Run
from fedl2g.report.figures import figure, write_figure
from fedl2g.report.increase import loss_increase, per_round_increase
from fedl2g.round.record import Accuracy, RoundRecord
from fedl2g.runs.directory import RunDirectory


def run(method: str, losses: list[float], accuracies: list[float], seed: int = 0, warmup: int = 0) -> Run:
    """A run of these losses; in warm-up rounds there is none."""
    history = [RoundRecord(round=n, loss=None) for n in range(warmup + 1)]
    for number, (loss, accuracy) in enumerate(zip(losses, accuracies, strict=True), start=warmup + 1):
        history.append(RoundRecord(round=number, loss=loss, accuracy=Accuracy(accuracy, accuracy, 0.0, {})))
    settings = {"method.name": method, "method.warmup_rounds": warmup, "seed": seed, "dataset": "digits"}
    return Run(RunDirectory(Path("none")), settings, history)


def test_the_increase_of_a_round_is_its_loss_less_the_earlier_minimum() -> None:
    assert per_round_increase({1: 3.0, 2: 2.0, 3: 2.5, 4: 1.5, 6: 4.0}) == {2: -1.0, 3: 0.5, 4: -0.5, 6: 2.5}
    assert per_round_increase({1: 3.0, 2: math.nan, 3: 2.0}) == {2: math.inf, 3: -1.0}
    assert per_round_increase({1: 3.0}) == per_round_increase({}) == {}


def test_every_method_has_its_increases_and_its_accuracy() -> None:
    local = Group("local", (run("local", [3, 2, 1], [0.2, 0.5, 0.4]),))
    guided = Group(
        "fedproto",
        (
            run("fedproto", [3, 2, 2.5], [0.1, 0.3, 0.2], seed=0, warmup=2),
            run("fedproto", [4, 2, 2.25], [0.1, 0.2, 0.4], seed=1, warmup=2),
        ),
    )
    found = loss_increase([local, guided])
    assert found["per_round"]["local"] == {"x": [2, 3], "y": [-1, -1], "low": [-1, -1], "high": [-1, -1]}
    # Counted in rounds of training: the warm-up is left out.
    assert found["per_round"]["fedproto"] == {"x": [2, 3], "y": [-1.5, 0.375], "low": [-2, 0.25], "high": [-1, 0.5]}
    assert found["rise"] == {
        "local": {"mean": 0, "seeds": [0]},
        "fedproto": {"mean": 0.375, "seeds": [0.5, 0.25]},
    }
    assert found["accuracy"]["local"] == {"mean": 0.5, "seeds": [0.5]}
    assert found["accuracy"]["fedproto"]["mean"] == pytest.approx(0.35)
    assert found["relative"]["fedproto"]["y"] == [0, 0, 1.5]  # seed 0 alone has a run of local training


def test_the_figure_names_the_accuracy_beside_each_method(tmp_path: Path) -> None:
    groups = [Group("fedproto", (run("fedproto", [3, 2, 2.5], [0.1, 0.3, 0.254]),))]
    path = write_figure("loss-increase", groups, tmp_path / "increase.svg")
    assert "fedproto (30.0%)" in path.read_text(encoding="utf-8")


def test_the_figure_shows_the_increase_and_beside_it_the_loss_against_local_training() -> None:
    guided = Group("fedproto", (run("fedproto", [3, 2, 2.5], [0.1, 0.3, 0.2]),))
    # No panel against local training without a run of it.
    assert lines(figure("loss-increase", [guided])) == {"fedproto (30.0%)": ([2, 3], [-1, 0.5])}

    local = Group("local", (run("local", [3, 1, 0.5], [0.2, 0.5, 0.4]),))
    increase, relative = figure("loss-increase", [local, guided]).hconcat
    assert lines(increase) == {"local (50.0%)": ([2, 3], [-2, -0.5]), "fedproto (30.0%)": ([2, 3], [-1, 0.5])}
    assert lines(relative) == {"fedproto": ([1, 2, 3], [0, 1, 2])}


def lines(chart: Any) -> dict[str, tuple[list[float], list[float]]]:
    return {row["method"]: (row["x"], row["y"]) for row in chart.data.values}
