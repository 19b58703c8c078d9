"""Trackers with the real libraries: every round once, also when a run was interrupted and went on."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import fedl2g
from endings import RaiseAfter
from fedl2g.cli import app
from fedl2g.errors import RunError, SettingError
from fedl2g.round.record import RoundRecord
from fedl2g.runs.tracking import scalars, trackers, where_tracked

pytest.importorskip("tensorboard", reason="needs the extra `tracking`")
pytest.importorskip("mlflow", reason="needs the extra `tracking`")


def experiment(**settings: object) -> fedl2g.Experiment:
    common = {"samples": 200, "clients": 3, "partition": "iid", "rounds": 6, "models": "small_cnn"}
    method = {"name": "fedl2g-l", "warmup_rounds": 1}
    return fedl2g.Experiment(**{**common, "method": method, "execution": {"checkpoint_every": 2}, **settings})


def read_tensorboard(run: Path, name: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return [(event.step, event.value) for event in found.Scalars(name)]


def read_mlflow(run: Path, name: str) -> list[tuple[int, float]]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{run.parent / 'mlflow.db'}")
    (found,) = client.search_runs([client.get_experiment_by_name("fedl2g").experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["method.name"] == "fedl2g-l"
    return [(metric.step, metric.value) for metric in client.get_metric_history(found.info.run_id, name)]


def test_a_resumed_run_continues_its_series_without_gaps_or_duplicates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):  # after round 5, which was tracked; the last checkpoint is of round 4
        fedl2g.run(experiment(), run, [*trackers("tensorboard,mlflow", run), RaiseAfter(5)])
    fedl2g.resume(run, trackers("tensorboard,mlflow", run))

    history = {record.round: record for record in fedl2g_history(run)}
    assert list(history) == [0, 1, 2, 3, 4, 5, 6]
    for read in (read_tensorboard, read_mlflow):
        accuracy = read(run, "accuracy/pooled")
        assert Counter(step for step, _ in accuracy) == Counter(range(7)), read
        for step, value in accuracy:
            assert value == pytest.approx(history[step].accuracy.pooled)
        assert [step for step, _ in sorted(read(run, "loss"))] == [2, 3, 4, 5, 6]  # round 1 is warm-up
        assert dict(read(run, "communication/up_mb"))[6] == pytest.approx(history[6].up_bytes / 2**20)
        assert len(read(run, "server/guide_step")) == 6


def fedl2g_history(run: Path) -> list[RoundRecord]:
    from fedl2g.runs.directory import RunDirectory

    return RunDirectory.open(run).history()


def test_points_that_never_reached_the_disk_are_added_on_resume(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        fedl2g.run(experiment(), run, [RaiseAfter(5)])  # not tracked at all so far
    fedl2g.resume(run, trackers("tensorboard", run))
    assert [step for step, _ in read_tensorboard(run, "accuracy/pooled")] == list(range(7))


def wandb_records(file: Path) -> Iterator[bytes]:
    """The records of an offline file: a LevelDB log after seven bytes, in blocks of 32 KB."""
    data, position, parts = file.read_bytes(), 7, b""
    while position + 7 <= len(data):
        if (left := 32768 - position % 32768) < 7:
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, the last part of one
            yield parts
            parts = b""


def read_wandb(run: Path, name: str) -> list[tuple[int, float]]:
    """The values in the offline folders of a run, in the order they were written."""
    from wandb.proto.wandb_internal_pb2 import Record

    found: list[tuple[int, float]] = []
    for file in sorted(run.glob("wandb/offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime):
        for data in wandb_records(file):
            history = Record.FromString(data).history
            values = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in history.item}
            if name in values:
                found.append((history.step.num, values[name]))
    return found


def test_wandb_offline_has_every_round_once_and_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs the extra `tracking`")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "a run"
    with pytest.raises(KeyboardInterrupt):
        fedl2g.run(experiment(), run, [*trackers("wandb", run), RaiseAfter(5)])
    result = CliRunner().invoke(app, ["resume", str(run), "--track", "wandb,tensorboard", "--quiet"])
    assert result.exit_code == 0, result.output
    history = {record.round: record.accuracy.pooled for record in fedl2g_history(run) if record.accuracy}
    tracked = read_wandb(run, "accuracy/pooled")
    assert [step for step, _ in tracked] == list(history)
    assert [value for _, value in tracked] == pytest.approx(list(history.values()))
    assert len(history) == 7
    assert f"wandb: {run}, nothing was sent; upload with `wandb sync '{run}'/wandb/offline-run-*`" in result.output
    assert f"tensorboard: {run}; open it with `tensorboard --logdir '{run}'`" in result.output
    assert where_tracked("mlflow", [tmp_path / "both" / "one", tmp_path / "both" / "two"]) == [
        f"mlflow: sqlite:///{tmp_path}/both/mlflow.db; open it with "
        f"`mlflow ui --backend-store-uri sqlite:///{tmp_path}/both/mlflow.db`"
    ]


def test_libraries_of_trackers_say_nothing(tmp_path: Path) -> None:
    words = "run -d digits --samples 60 -c 2 --partition iid --models small_cnn -m local -r 1 -o one --quiet --json"
    command = [sys.executable, "-m", "fedl2g", *words.split(), "--track", "tensorboard,mlflow,wandb"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert json.loads(done.stdout)["rounds"] == 1


def test_the_privacy_that_was_spent_is_tracked() -> None:
    spent = {"epsilon": 1.5, "delta": 1e-5, "noise_multiplier": 2.0}
    assert scalars(RoundRecord(3, privacy={**spent, "simulated": 0.0}))["privacy/epsilon"] == 1.5
    simulated = scalars(RoundRecord(3, privacy={**spent, "simulated": 1.0}))
    assert simulated["privacy_simulated/epsilon"] == 1.5
    assert not any(name.startswith("privacy/") for name in simulated)


def test_an_unknown_tracker_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="did you mean 'tensorboard'"):
        trackers("tensorbord", tmp_path)


@pytest.mark.parametrize(
    ("tracker", "name"),
    [
        ("tensorboard", "run/tensorboard"),
        ("tensorboard", "run/tensorboard/events.out.tfevents.1.x"),
        ("wandb", "run/wandb"),
        ("wandb", "run/wandb/rounds.txt"),
        ("wandb", "run/wandb/offline-run-20261119_000000-x"),
        ("mlflow", "mlflow.db"),
    ],
)
def test_nothing_is_tracked_through_a_link(
    tracker: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(tracker)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    fedl2g.run(experiment(rounds=2), tmp_path / "run")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("1\n")
    target = outside if name in ("run/tensorboard", "run/wandb") or "offline" in name else outside / "mine"
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).symlink_to(target)
    with pytest.raises(RunError, match=r"is a link|is not a file"):
        fedl2g.run(experiment(rounds=3), tmp_path / "run", trackers(tracker, tmp_path / "run"))
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"mine": "1\n"}


@pytest.mark.parametrize("name", ["tensorboard/events.out.tfevents.1.x", "wandb/rounds.txt"])
def test_damaged_files_of_a_tracker_are_named(name: str, tmp_path: Path) -> None:
    tracker = name.partition("/")[0]
    pytest.importorskip(tracker)
    fedl2g.run(experiment(rounds=2), tmp_path / "run")
    (tmp_path / "run" / name).parent.mkdir()
    (tmp_path / "run" / name).write_bytes(no_event() if tracker == "tensorboard" else b"no number")
    with pytest.raises(RunError, match=f"{tracker}.*: cannot be read"):
        fedl2g.run(experiment(rounds=3), tmp_path / "run", trackers(tracker, tmp_path / "run"))


def no_event() -> bytes:
    """A record of TensorBoard's, with its checksums, that holds no event."""
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    length, content = struct.pack("<Q", 20), b"\xff" * 20
    sums = (struct.pack("<I", masked_crc32c(part)) for part in (length, content))
    return length + next(sums) + content + next(sums)


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_papers_cells_are_tracked(jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDL2G_TRACK", "")  # the command sets it for other processes: put it back afterwards
    arguments = ["paper", "run", "quiz_size", "--scale", "smoke", "--only", "fedl2g-l,10", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, [*arguments, "--track", "tensorboard,mlflow", "--jobs", str(jobs), "--quiet"])
    assert result.exit_code == 0, result.output
    (cell,) = (tmp_path / "smoke" / "cells").glob("fedl2g-l-*")
    for read in (read_tensorboard, read_mlflow):
        assert [step for step, _ in read(cell, "accuracy/pooled")] == [0, 1, 2]


def test_a_wrong_tracker_is_said_before_any_cell_of_the_paper_is_run(tmp_path: Path) -> None:
    arguments = ["paper", "run", "quiz_size", "--scale", "smoke", "--out", str(tmp_path), "--track", "mlflo"]
    error = CliRunner().invoke(app, arguments).exception
    assert isinstance(error, SettingError)
    assert "did you mean 'mlflow'" in str(error)
    assert not list(tmp_path.iterdir())
