"""A run is given more rounds: to the bits of a run that had them from the start, or it is refused with a sentence."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedl2g
from fedl2g.errors import FedL2GError, RunError, SettingError
from fedl2g.experiment import Experiment
from fedl2g.folder import Folder
from fedl2g.runs import runner
from fedl2g.runs.directory import RunDirectory
from method_settings import without_warmup

Tiny = Callable[..., Experiment]
Outcome = Callable[[Path], dict[str, Any]]

# Every second round is evaluated, and the last one: the short run evaluates a round that the long one does not.
SPARSE: dict[str, Any] = {"evaluate_every": 2, "execution__checkpoint_every": 2, "client_lr": 0.2}
SHORT, LONG = 3, 5


@pytest.fixture(scope="module")
def whole(tiny: Tiny, outcome: Outcome, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("whole") / "run"
    fedl2g.run(tiny(rounds=LONG, **SPARSE), path)
    return outcome(path)


@pytest.fixture(scope="module")
def finished(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("finished") / "run"
    fedl2g.run(tiny(rounds=SHORT, **SPARSE), path)
    return path


@pytest.fixture
def short(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_a_finished_run_with_more_rounds_is_the_long_run(
    tiny: Tiny, outcome: Outcome, whole: dict[str, Any], short: Path
) -> None:
    assert outcome(short) != whole
    fedl2g.run(tiny(rounds=LONG, **SPARSE), short)
    assert outcome(short) == whole
    run = RunDirectory.open(short)
    assert run.experiment() == tiny(rounds=LONG, **SPARSE)
    assert run.about()["rounds"] == LONG
    before = (short / "metrics.jsonl").read_bytes()
    fedl2g.run(tiny(rounds=LONG, **SPARSE), short)  # finished: nothing more to do
    assert (short / "metrics.jsonl").read_bytes() == before


def test_resume_extends_too_and_an_evaluation_that_was_due_is_not_repeated(
    tiny: Tiny, outcome: Outcome, tmp_path: Path
) -> None:
    settings = {"method": "fedproto", "execution__checkpoint_every": 10}
    fedl2g.run(tiny(rounds=4, **settings), tmp_path / "whole")
    fedl2g.run(tiny(rounds=2, **settings), tmp_path / "run")
    fedl2g.resume(tmp_path / "run", rounds=4)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert len(lines) == 5  # each round was run once


class Killed(BaseException):
    """As kill -9: nothing after it happens."""


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("go_on", ["resume", "run"])
def test_killed_while_it_was_being_extended(
    tiny: Tiny,
    outcome: Outcome,
    whole: dict[str, Any],
    short: Path,
    steps: int,
    go_on: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before run.json is written, and between it and experiment.toml."""
    real, done = Folder.write_text, []

    def write(folder: Folder, name: str, text: str) -> None:
        if len(done) == steps:
            raise Killed
        done.append(name)
        real(folder, name, text)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "write_text", write)
        with pytest.raises(Killed):
            fedl2g.run(tiny(rounds=LONG, **SPARSE), short)
    assert done == ["run.json"][:steps]
    if go_on == "run":
        fedl2g.run(tiny(rounds=LONG, **SPARSE), short)
    elif steps == 0:  # the run is what it was, and only has to be finished again
        assert fedl2g.resume(short).rounds == SHORT
        fedl2g.resume(short, rounds=LONG)
    else:
        fedl2g.resume(short)
    assert outcome(short) == whole
    assert f"rounds = {LONG}\n" in (short / "experiment.toml").read_text()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"method": "fedkd"}, "what fedkd computes in a round depends on the number of rounds; choose another --out"),
        (
            {"method": "feddistill", "privacy__clip": 1.0, "privacy__noise_multiplier": 1.0},
            "its privacy budget was planned",
        ),
    ],
)
def test_a_run_that_knew_its_rounds_is_not_extended(
    settings: dict[str, Any], sentence: str, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDL2G_NOISE_KEY", "0" * 64)
    fedl2g.run(tiny(rounds=1, **settings), tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    for extend in (
        lambda: fedl2g.run(tiny(rounds=2, **settings), tmp_path / "run"),
        lambda: fedl2g.resume(tmp_path / "run", rounds=2),
    ):
        with pytest.raises(
            SettingError, match=rf"^rounds: .*run has 1 and cannot be extended to 2: .*{sentence}"
        ) as told:
            extend()
        assert "\n" not in str(told.value)
    assert before == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}


def test_fewer_rounds_and_other_settings_are_refused(tiny: Tiny, short: Path) -> None:
    with pytest.raises(RunError, match=r"rounds: 2 is fewer than the 3 of .*; a run can be extended, not shortened"):
        fedl2g.run(tiny(rounds=2, **SPARSE), short)
    with pytest.raises(RunError, match="rounds: 2 is fewer"):
        fedl2g.resume(short, rounds=2)
    with pytest.raises(RunError, match="holds another experiment"):
        fedl2g.run(tiny(rounds=LONG, **{**SPARSE, "client_lr": 0.3}), short)


def test_more_rounds_do_not_wake_a_run_that_stopped_early(tiny: Tiny, outcome: Outcome, tmp_path: Path) -> None:
    settings = {"method": "local", "patience": 1, "client_lr": 1e-9}
    first = fedl2g.run(tiny(rounds=4, **settings), tmp_path / "run")
    assert first.status == "stopped early"
    assert fedl2g.run(tiny(rounds=6, **settings), tmp_path / "run").rounds == first.rounds
    fedl2g.run(tiny(rounds=6, **settings), tmp_path / "whole")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_only_a_method_that_says_so_is_told_the_number_of_rounds(
    tiny: Tiny, setup_of: Callable[[Experiment], Any]
) -> None:
    told = {
        name: setup_of(tiny(method=without_warmup(name), rounds=7)).task.rounds
        for name in ("local", "fedl2g-l", "fedkd")
    }
    assert told == {"local": None, "fedl2g-l": None, "fedkd": 7}


def test_other_data_does_not_touch_a_run(tiny: Tiny, short: Path) -> None:
    other = fedl2g.load_dataset("digits", samples=100)
    with pytest.raises(FedL2GError, match="is not the one"):
        runner.run(tiny(rounds=LONG, **SPARSE), short, data=other)
    assert RunDirectory.open(short).result() is not None
