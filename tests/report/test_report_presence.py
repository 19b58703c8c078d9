"""The chart of client availability."""

from __future__ import annotations

from pathlib import Path

import fedl2g
from fedl2g.experiment import Experiment
from fedl2g.report.page import write_report
from fedl2g.report.presence import _KINDS, draw_presence, presence
from fedl2g.round.absence import AWAY, BUSY, DROPPED, LATE, LOST, NOT_JOINED
from fedl2g.round.record import RoundRecord


def test_the_picture_tells_who_was_there(tmp_path: Path) -> None:
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
    names = [[_KINDS[kind][0] for kind in row] for row in presence(history, 4)]
    assert names == [
        ["replied", "refused", "replied"],
        ["dropped out before training", "replied", "away"],
        ["late or still busy", "late reply used", "not asked"],
        ["not asked", "not joined yet", "upload lost after training"],
    ]
    draw_presence(history, 4, tmp_path / "figures" / "presence.png")
    assert (tmp_path / "figures" / "presence.png").stat().st_size > 1000


def test_the_page_shows_it_where_clients_were_away(tmp_path: Path) -> None:
    tiny = {"method": "fedproto", "samples": 100, "image_size": 16, "partition": "iid", "models": "small_cnn"}
    experiment = Experiment(**tiny, clients=2, rounds=1, availability={"dropout_before": 1.0})
    fedl2g.run(experiment, tmp_path / "run")
    page = write_report([tmp_path / "run"], tmp_path / "page.html", tsne=False).read_text()
    assert page.count('alt="Client availability by round"') == 1
