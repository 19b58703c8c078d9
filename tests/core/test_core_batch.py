"""Several runs as one piece of work."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import fedl2g
from fedl2g.engines.inline import InlineEngine
from fedl2g.errors import SettingError
from fedl2g.experiment import Experiment
from fedl2g.models import calibration
from fedl2g.runs import runner
from fedl2g.runs.batch import run_all
from fedl2g.runs.comparison import Comparison
from fedl2g.runs.directory import RunDirectory

TINY: dict[str, Any] = {"samples": 80, "partition": "iid", "clients": 2, "rounds": 1, "models": "small_cnn"}


def test_runs_that_are_over_start_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiments = {tmp_path / str(seed): Experiment(**TINY, method="local", seed=seed) for seed in (0, 1)}
    results = dict(run_all(experiments))
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: pytest.fail("a process was started"))
    assert dict(run_all(experiments, jobs=2)) == results


@pytest.mark.parametrize("jobs", [1, 2])
def test_auto_layouts_are_settled_once_for_a_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    """On a machine on which every measurement says something else."""
    choices = iter(["channels_last", "contiguous"] * 10)
    monkeypatch.setattr(calibration, "faster_layout", lambda name, **_: next(choices))

    def plan(*methods: str) -> Comparison:
        return Comparison.plan(None, {**TINY, "layout": "auto"}, methods, 1, tmp_path)

    dict(run_all(plan("local", "feddistill").experiments, jobs=jobs))
    dict(
        run_all(plan("fedproto", "local", "feddistill").experiments, jobs=jobs)
    )  # a later one joins those that are over
    found = [RunDirectory(path).experiment().layout for path in plan("local", "feddistill", "fedproto").experiments]
    assert found == ["small_cnn=channels_last"] * 3
    assert next(choices) == "contiguous"  # the second: all others were not asked for


def test_the_cpu_chooses_no_layout_for_another_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "resolve_device", lambda name: torch.device("cuda"))
    with pytest.raises(SettingError, match=r"auto is measured on the CPU.*'cuda'; choose contiguous or channel"):
        fedl2g.run(Experiment(**TINY, layout="auto", device="cuda"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_deployment_measures_no_layout(tmp_path: Path, site_of: Any) -> None:
    site = site_of(Experiment(**TINY, layout="auto"))
    with pytest.raises(SettingError, match="clients of a deployment compute on their own"):
        runner.run_site(site, tmp_path / "run", InlineEngine)
    assert not (tmp_path / "run").exists()
