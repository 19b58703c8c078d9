"""Several runs as one piece of work."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fedl2g.experiment import Experiment
from fedl2g.runs.batch import run_all


def test_runs_that_are_over_start_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiments = {
        tmp_path / str(seed): Experiment(
            method="local", samples=80, partition="iid", clients=2, rounds=1, models="small_cnn", seed=seed
        )
        for seed in (0, 1)
    }
    results = dict(run_all(experiments))
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: pytest.fail("a process was started"))
    assert dict(run_all(experiments, jobs=2)) == results
