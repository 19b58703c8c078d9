"""The chart of client availability."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fedl2g
from fedl2g.experiment import Experiment
from fedl2g.report.charts.presence import MOST_CELLS
from fedl2g.report.charts.theme import Look
from fedl2g.report.collect import read_runs
from fedl2g.report.content import collect
from fedl2g.report.drawings import availability
from fedl2g.report.page import fragment
from fedl2g.report.presence import KINDS, presence
from fedl2g.round.absence import AWAY, BUSY, DROPPED, LATE, LOST, NOT_JOINED
from fedl2g.round.record import RoundRecord


def test_the_grid_tells_who_was_there() -> None:
    history = [
        RoundRecord(0),
        RoundRecord(
            1,
            participants=[0, 1, 2],
            missing={1: DROPPED, 2: f"{LATE} by 1 round"},
            away={1: DROPPED, 2: f"{LATE} by 1 round"},
        ),
        RoundRecord(2, participants=[0, 1], refused={0: "NaN"}, late={2: 1}, away={2: BUSY, 3: NOT_JOINED}),
        RoundRecord(3, participants=[0, 3], missing={3: LOST}, away={1: AWAY, 3: LOST}),
    ]
    names = [[KINDS[kind][0] for kind in row] for row in presence(history, 4)]
    assert names == [
        ["replied", "refused", "replied"],
        ["dropped out before training", "replied", "away"],
        ["late or still busy", "late reply used", "not asked"],
        ["not asked", "not joined yet", "upload lost after training"],
    ]


def drawn(grid: list[list[int]]) -> dict[str, Any]:
    (columns,) = availability(grid, Look()).data.values
    return dict(columns)


def test_a_rectangle_covers_the_rounds_in_which_a_client_stayed_the_same() -> None:
    replied, away = (next(n for n, kind in enumerate(KINDS) if kind[0] == name) for name in ("replied", "away"))
    assert drawn([[replied, away, away, replied], [replied] * 4]) == {
        "client": [0, 0, 0, 1],
        "state": ["replied", "away", "replied", "replied"],
        "first": [0.5, 1.5, 3.5, 0.5],
        "end": [1.5, 3.5, 4.5, 4.5],
        "rounds": ["1", "2 to 3", "4", "1 to 4"],
    }


def test_more_than_a_page_can_show_is_counted() -> None:
    away = next(n for n, kind in enumerate(KINDS) if kind[0] == "away")
    grid = [[0, away] if client < 3 else [0, 0] for client in range(MOST_CELLS // 2 + 1)]
    assert drawn(grid) == {
        "round": [1, 1, 2, 2],
        "order": [0, away, 0, away],
        "state": ["replied", "away", "replied", "away"],
        "clients": [len(grid), 0, len(grid) - 3, 3],
    }


def test_the_page_shows_it_where_clients_were_away(tmp_path: Path) -> None:
    tiny: dict[str, Any] = {"samples": 100, "image_size": 16, "partition": "iid", "models": "small_cnn"}
    for chance in (0.0, 1.0):
        path = tmp_path / f"run{chance:.0f}"
        fedl2g.run(
            Experiment(method="local", **tiny, clients=2, rounds=1, availability={"dropout_before": chance}), path
        )
        charts = fragment(collect(read_runs([path]), tsne=False))["charts"]
        assert ("presence" in charts) is bool(chance)
    ((shown,),) = charts["presence"][0]["spec"]["datasets"].values()
    assert (shown["client"], set(shown["state"])) == ([0, 1], {"dropped out before training"})
