"""The server of a deployment whose SuperLink is gone: it ends with a sentence and lets its run directory go."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the optional extra `flower` is not installed")

from fake_grid import register
from flwr.superlink.grid import HttpGrid

from fedl2g.deploy import server_app
from fedl2g.deploy.scaffold import Plan, scaffold
from fedl2g.errors import RunError, SettingError
from fedl2g.interrupts import SIGNALS
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.runner import resume
from fedl2g.schema import image_schema


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    scaffold(Plan(tmp_path / "fed", ("north", "south"), ("a", "b"), image_schema(1, 8, 8)))
    path = tmp_path / "fed" / "coordinator" / "experiment.toml"
    path.write_text(path.read_text().replace("link_seconds = 120.0", "link_seconds = 0.5"))
    register(path.parent, "north", "south")
    return path


def test_a_superlink_that_is_gone_is_given_up_after_the_time_set(experiment: Path, tmp_path: Path) -> None:
    grid = HttpGrid("127.0.0.1:9", insecure=True, token="token")  # nobody listens there
    with pytest.raises(
        RunError, match=r"SuperLink: could not be reached \(no answer for .* s\); .*; start the SuperLink"
    ):
        server_app.run(grid, experiment, experiment.with_name("keys.toml"), tmp_path / "run")
    assert "ERROR the run stopped: SuperLink: could not be reached" in (tmp_path / "run" / "log.txt").read_text()
    with RunDirectory.open(tmp_path / "run").lock():  # free for the run that goes on
        pass
    with pytest.raises(SettingError, match="continue it with `fedl2g deploy run COORDINATOR --name NAME`"):
        resume(tmp_path / "run")


class EndedGrid:
    """Flower's monitor of a lost SuperLink sends SIGINT, and its heartbeat may send another; a system sends others."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number

    def get_nodes(self) -> list[object]:
        try:
            signal.raise_signal(self.number)
        finally:
            signal.raise_signal(signal.SIGINT)
        raise AssertionError("the run went on")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_run_that_flower_ends_stops_at_once(number: signal.Signals, experiment: Path, tmp_path: Path) -> None:
    before = [signal.getsignal(one) for one in SIGNALS]
    grid: Any = EndedGrid(number)
    with pytest.raises(RunError, match=r"Flower: ended the run .*start the run again"):
        server_app.run(grid, experiment, experiment.with_name("keys.toml"), tmp_path / "run")
    assert [signal.getsignal(one) for one in SIGNALS] == before
    assert "ERROR the run stopped: Flower: ended the run" in (tmp_path / "run" / "log.txt").read_text()
    with RunDirectory.open(tmp_path / "run").lock():
        pass


def test_the_next_run_waits_for_a_server_that_is_giving_up(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedl2g.runs.runner._SHUTDOWN_SECONDS", 0.5)
    grid: Any = EndedGrid(signal.SIGINT)
    with pytest.raises(RunError, match="Flower: ended the run"):
        server_app.run(grid, experiment, experiment.with_name("keys.toml"), tmp_path / "run")
    started = time.monotonic()
    with RunDirectory.open(tmp_path / "run").lock(), pytest.raises(RunError, match="in use by another process"):
        server_app.run(grid, experiment, experiment.with_name("keys.toml"), tmp_path / "run")
    assert time.monotonic() - started >= 1.0  # link_seconds and the time to end
