"""Several runs as one piece of work."""

from __future__ import annotations

import json
import math
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fedl2g
from fedl2g import setup
from fedl2g.errors import FedL2GError, SettingError
from fedl2g.experiment import Experiment
from fedl2g.models import calibration
from fedl2g.runs import batch, execute
from fedl2g.runs.batch import run_all
from fedl2g.runs.comparison import Comparison
from fedl2g.runs.directory import RunDirectory, find_runs
from fedl2g.runs.result import RunResult

TINY: dict[str, Any] = {"samples": 80, "partition": "iid", "clients": 2, "rounds": 1, "models": "small_cnn"}


def test_runs_that_are_over_start_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiments = {tmp_path / str(seed): Experiment(**TINY, method="local", seed=seed) for seed in (0, 1)}
    results = dict(run_all(experiments))
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: pytest.fail("a process was started"))
    assert dict(run_all(experiments, jobs=2)) == results


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
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
    monkeypatch.setattr(setup, "resolve_device", lambda name: torch.device("cuda"))
    with pytest.raises(SettingError, match=r"auto is measured on the CPU.*'cuda'; choose preset"):
        fedl2g.run(Experiment(**TINY, method="local", layout="auto", device="cuda"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_runs_are_found_without_looking_inside_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b", "a/deep", ".c.partial-7"):
        (tmp_path / name / "checkpoints" / "inner").mkdir(parents=True)
        (tmp_path / name / "run.json").touch()
    (tmp_path / "b" / "checkpoints" / "inner" / "run.json").touch()
    looked: list[str] = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: looked.append(str(path)) or scandir(path))
    assert [run.path for run in find_runs(tmp_path)] == [tmp_path / "a/deep", tmp_path / "b"]
    assert not [path for path in looked if "checkpoints" in path]
    assert [run.path for run in find_runs(tmp_path / "b")] == [tmp_path / "b"]


RESULT = RunResult(
    "m", 0, "finished", 5, 0.5, 3, 0.4, 0.4, 0.1, None, {"head": 1}, 0.1, 0.1, 1.0, 1.0, "here"
).to_dict()


def test_a_result_is_read_back_as_it_was_written() -> None:
    assert RunResult.from_dict(json.loads(json.dumps(RESULT))).to_dict() == RESULT
    older = {name: value for name, value in RESULT.items() if name != "refused"}  # has a default
    assert RunResult.from_dict(older).refused == 0


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("method", None), ("seed", 0.5), ("seed", True), ("status", "over"), ("status", ["finished"]),
        ("rounds", "5"), ("best_accuracy", None), ("best_accuracy", math.nan), ("best_accuracy", 10**400),
        ("best_loss", math.inf), ("other_accuracies", []), ("other_accuracies", {"head": "1"}), ("more", 1),
    ],
)  # fmt: skip
def test_a_result_that_is_none_is_refused(name: str, wrong: object) -> None:
    with pytest.raises(ValueError, match=name):
        RunResult.from_dict({**RESULT, name: wrong})


def test_a_result_that_lacks_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="best_round"):
        RunResult.from_dict({name: value for name, value in RESULT.items() if name != "best_round"})


def test_of_runs_in_processes_of_their_own_one_may_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(code: int) -> Any:
        def process(command: list[str], **_: Any) -> Any:
            said = json.dumps(RESULT) if "good" in command[command.index("--out") + 1] else ""
            communicate = lambda: (said, "" if said else "fedl2g: why\n")  # noqa: E731
            return SimpleNamespace(returncode=0 if said else code, communicate=communicate)

        return process

    experiments = {tmp_path / name: Experiment(**TINY, method="local") for name in ("bad", "good")}
    failures: dict[Path, FedL2GError] = {}
    monkeypatch.setattr(batch, "process_ended", lambda process: None)
    monkeypatch.setattr(batch, "start_process", ends(2))
    assert [path.name for path, _ in run_all(experiments, jobs=2, failed=failures.__setitem__)] == ["good"]
    assert [str(error) for error in failures.values()] == [f"{tmp_path / 'bad'}: the run failed: why"]
    with pytest.raises(FedL2GError, match="why"):
        dict(run_all(experiments, jobs=2))
    monkeypatch.setattr(batch, "start_process", ends(130))  # one that was interrupted ends the others too
    with pytest.raises(execute.Interrupted, match="same command"):
        dict(run_all(experiments, jobs=2, failed=failures.__setitem__))
