"""Running and showing the paper's experiments at scale smoke: resumable, tolerant of bad cells, honest tables."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from endings import RaiseAfter
from fedl2g.cli import app
from fedl2g.datasets.download import RemoteFile
from fedl2g.errors import DataError, FedL2GError, SettingError
from fedl2g.models import calibration
from fedl2g.paper.catalog import Cell, paper_experiment
from fedl2g.paper.study import Study, run_cells
from fedl2g.paper.tables import provenance, sheets
from fedl2g.runs.result import RunResult

runner = CliRunner()


def fedl2g(*arguments: str) -> str:
    result = runner.invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paper")
    fedl2g("paper", "run", "server_lr", "--scale", "smoke", "--only", "l/0.1,f/100", "--out", str(folder), "--quiet")
    return folder


def test_bare_paper_lists(out: Path) -> None:
    rows = json.loads(fedl2g("paper", "--json"))
    assert {"name": "data", "kind": "table", "cells": 72}.items() <= rows[0].items()
    assert "convergence" in fedl2g("paper")


def test_finished_cells_are_not_run_again_and_tables_share_them(out: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in out.glob("smoke/cells/*/result.json")}
    assert len(before) == 2
    arguments = ("paper", "run", "quiz_size", "--scale", "smoke", "--only", "10", "--out", str(out), "--json")
    summary = json.loads(fedl2g(*arguments))
    assert summary["finished"] == summary["cells"] == 2
    assert summary["estimate_seconds"] == 0
    assert {p: p.stat().st_mtime_ns for p in out.glob("smoke/cells/*/result.json")} == before


def test_show_prints_and_writes_ours_the_papers_and_the_difference(out: Path) -> None:
    text = fedl2g("paper", "show", "quiz_size", "--scale", "smoke", "--out", str(out))
    assert "missing" in text
    assert "NOT a reproduction" in " ".join(text.split())
    assert "seeds: 0" in text
    rows = list(csv.DictReader((out / "smoke" / "quiz_size.csv").open()))
    assert len(rows) == 6
    ten = next(r for r in rows if r["method"] == "fedl2g-f" and r["column"] == "10")
    assert float(ten["difference"]) == pytest.approx(float(ten["ours"]) - 43.8, abs=0.01)
    assert next(r for r in rows if r["column"] == "2")["remark"] == "missing"
    markdown = (out / "smoke" / "quiz_size.md").read_text()
    assert "| FedL2G-f | missing / ***44.2*** / - |" in markdown
    assert "commit:" in markdown
    latex = (out / "smoke" / "quiz_size.tex").read_text()
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == 1
    assert r"\textbf{" in latex
    fedl2g("paper", "show", "quiz_size", "--scale", "smoke", "--only", "fedl2g-f,10", "--out", str(out))
    assert [(r["method"], r["column"]) for r in csv.DictReader((out / "smoke" / "quiz_size.csv").open())] == [
        ("fedl2g-f", "10")
    ]


def test_the_notes_say_on_which_samples_the_best_rounds_were_chosen(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, experiment = Study.open(out, "smoke"), paper_experiment("server_lr")
    before = provenance(experiment, study, sheets(experiment, study))[0]
    assert before.endswith("Accuracies: best round chosen on test data.")
    original = study.result

    def on_validation(cell: Cell) -> RunResult | None:
        found = original(cell)
        return None if found is None else dataclasses.replace(found, selection="validation")

    monkeypatch.setattr(study, "result", on_validation)
    after = provenance(experiment, study, sheets(experiment, study))[0]
    assert after.endswith("Accuracies: best round chosen on validation data.")


def test_rates_of_the_two_variants_are_two_tables_as_in_the_paper(out: Path) -> None:
    found = sheets(paper_experiment("server_lr"), Study.open(out, "smoke"))
    assert [s.methods for s in found] == [("fedl2g-l",), ("fedl2g-f",)]
    assert [len(s.columns) for s in found] == [5, 5]


def test_costs_are_measured_and_compared_in_percent(out: Path) -> None:
    (sheet,) = sheets(paper_experiment("cost"), Study.open(out, "smoke"))
    up = sheet.entries["fedl2g-f", "up_mb"]
    assert up.ours is not None
    assert up.ours > 0
    assert up.difference == pytest.approx(100 * (up.ours / 1.75 - 1))
    warm = sheet.entries["fedl2g-f", "warmup_client_s"]
    training = sheet.entries["fedl2g-f", "client_s"]
    assert warm.ours is not None
    assert training.ours is not None
    assert 0 < warm.ours < training.ours
    assert ("lg-fedavg", "warmup_client_s") not in sheet.entries


def test_a_diverged_or_impossible_cell_is_recorded_and_the_rest_goes_on(tmp_path: Path) -> None:
    study = Study.open(tmp_path, "smoke")
    cells = study.cells(paper_experiment("aggregation"), 1, ["cifar100"])
    bad = [
        dataclasses.replace(cells[0], settings={**cells[0].settings, "client_lr": 1e20}),
        dataclasses.replace(cells[1], settings={**cells[1].settings, "samples": 10_000_000}),
        cells[2],
    ]
    outcomes = list(run_cells(study, bad))
    assert outcomes[0].result is not None
    assert outcomes[0].result.status == "diverged"
    assert outcomes[1].result is None
    assert "10000000" in (outcomes[1].reason or "")
    assert outcomes[2].result is not None
    assert outcomes[2].result.status == "finished"
    assert study.failures() == {bad[1].folder: outcomes[1].reason}

    # As the table shows them: the planned cells are made to be the bad ones.
    study.cells = lambda experiment, seeds=None, only=(): [bad[0], bad[1], bad[2]]  # type: ignore[method-assign]
    found = sheets(paper_experiment("aggregation"), study)
    entries = found[0].entries
    assert entries["local", "cifar100"].remark.startswith("diverged in round 1")
    assert entries["fedl2g-l", "cifar100"].remark.startswith("failed: ")
    assert entries["fedl2g-f", "cifar100"].best
    assert any("1 of 3 cells" in line for line in provenance(paper_experiment("aggregation"), study, found))


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_download_that_fails_is_tried_once_and_not_for_every_cell(
    jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def offline(file: RemoteFile, *_: object) -> Path:
        asked.append(file.name)
        raise DataError(f"{file.name} cannot be downloaded; check the connection")

    monkeypatch.setenv("FEDL2G_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr("fedl2g.datasets.loading.fetch", offline)
    study = Study.open(tmp_path, "small")
    cells = list(study.cells(paper_experiment("data"), 1, ["pathological/cifar10"]))
    outcomes = list(run_cells(study, cells, jobs=jobs))
    assert len(outcomes) == len(cells) > 2
    assert all("cannot be downloaded" in (outcome.reason or "") for outcome in outcomes)
    assert len(asked) == 1


def test_failed_cells_fail_the_command_and_each_reason_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(file: RemoteFile, *_: object) -> Path:
        raise DataError(f"{file.name} cannot be downloaded; check the connection")

    monkeypatch.setenv("FEDL2G_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr("fedl2g.datasets.loading.fetch", offline)
    arguments = ["paper", "run", "data", "--scale", "small", "--only", "pathological/cifar10", "--seeds", "1", "--yes"]
    result = runner.invoke(app, [*arguments, "--out", str(tmp_path), "--json"])
    assert isinstance(result.exception, FedL2GError)
    assert result.exception.exit_code == 1
    failed = json.loads(result.stdout)["failed"]
    text = str(result.exception)
    assert text.startswith(f"{len(failed)} of {len(failed)} cells failed: ")
    assert text.count("cannot be downloaded") == 1
    assert f"and {len(failed) - 3} more" in text


@pytest.mark.slow
def test_all_methods_run_at_scale_smoke_and_fill_their_columns(out: Path) -> None:
    summary = json.loads(
        fedl2g("paper", "run", "data", "--scale", "smoke", "--only", "cifar10", "--out", str(out), "--json")
    )
    assert summary["finished"] == summary["cells"] == 18
    (sheet,) = sheets(paper_experiment("data"), Study.open(out, "smoke"))
    assert len(sheet.entries) == 72
    assert not [e for e in sheet.entries.values() if e.ours is None]  # at this scale all datasets are the digits
    for column in sheet.columns:
        column_entries = [e for e in sheet.entries.values() if e.column is column]
        assert max(e.ours or 0 for e in column_entries) == next(e.ours for e in column_entries if e.best)


def test_an_interrupted_cell_goes_on_where_it_was(tmp_path: Path) -> None:
    study = Study.open(tmp_path, "smoke", settings={"execution.checkpoint_every": 1})
    cells = study.cells(paper_experiment("aggregation"), 1, ["cifar100", "local,fedl2g-l"])
    done = run_cells(study, cells, watch=lambda cell: [] if cell.method == "local" else [RaiseAfter(1)])
    assert next(done).cell.method == "local"
    with pytest.raises(KeyboardInterrupt):
        next(done)
    assert study.result(cells[1]) is None
    assert study.run_of(cells[1]) is not None
    (again,) = run_cells(study, cells)  # the finished one is not run again
    assert again.cell == cells[1]
    whole = Study.open(tmp_path / "whole", "smoke", settings={"execution.checkpoint_every": 1})
    *_, straight = run_cells(whole, cells)
    assert again.result is not None
    assert straight.result is not None
    assert again.result.last_accuracy == straight.result.last_accuracy


def test_auto_layouts_are_settled_once_for_all_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choices = iter(["channels_last", "contiguous"] * 20)  # a machine on which every measurement says something else
    monkeypatch.setattr(calibration, "faster_layout", lambda name, **_: next(choices))
    study = Study.open(tmp_path, "smoke", settings={"layout": "auto", "rounds": 1, "models": "small_cnn"})
    cells = study.cells(paper_experiment("aggregation"), 1, ["cifar100"])
    assert len(cells) > 1
    list(run_cells(study, cells[:1]))
    list(run_cells(study, cells))  # the later ones go by those that are there
    assert {study.run_of(cell).experiment().layout for cell in cells} == {"small_cnn=channels_last"}


def test_choices_of_one_folder_are_not_mixed(tmp_path: Path) -> None:
    Study.open(tmp_path, "small", {"cifar10": "/a.npz"}, {"rounds": 3}).save()
    again = Study.open(tmp_path, "small")
    assert (again.dataset_paths, again.settings) == ({"cifar10": "/a.npz"}, {"rounds": 3})
    assert Study.open(tmp_path, "small", {"cifar100": "/b.npz"}).dataset_paths.keys() == {"cifar10", "cifar100"}
    with pytest.raises(SettingError, match="choose another --out"):
        Study.open(tmp_path, "small", {"cifar10": "/c.npz"})
    with pytest.raises(SettingError, match="choose another --out"):
        Study.open(tmp_path, "small", settings={"rounds": 4})


def test_a_long_run_is_asked_for_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedl2g.cli import paper_run
    from fedl2g.runs import estimate

    monkeypatch.setattr(estimate, "estimate_seconds", lambda experiment: 30 * 86400.0)
    arguments = ["paper", "run", "aggregation", "--scale", "smoke", "--out", str(tmp_path)]
    dry = runner.invoke(app, [*arguments, "--dry-run"])
    assert dry.exit_code == 0
    assert "90.0 days" in dry.output
    monkeypatch.setattr(paper_run, "on_a_terminal", lambda: True)
    refused = runner.invoke(app, arguments, input="n\n")
    assert refused.exit_code != 0
    assert not list(tmp_path.glob("smoke/cells/*"))


def test_images_from_a_file_stand_in_for_a_named_dataset(tmp_path: Path) -> None:
    import numpy as np

    path = tmp_path / "some.npz"
    labels = np.arange(9000) % 5
    np.savez(path, images=np.zeros((9000, 8, 8, 3), np.uint8), labels=labels)
    study = Study.open(tmp_path / "runs", "small", {"cifar10": str(path)})
    (cell,) = study.cells(paper_experiment("aggregation"), 1, ["cifar10", "local"])
    experiment = study.experiment(cell)
    assert experiment.dataset == str(path)
    assert experiment.samples == 4000
    assert experiment.models == "small"


def test_distributions_are_those_that_the_runs_would_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of the test sets and of the images, too, are those of the cell's experiment."""
    from fedl2g.paper.figures import draw_experiment
    from fedl2g.report import bubbles
    from fedl2g.setup import prepare

    drawn = []
    monkeypatch.setattr(bubbles, "draw_bubbles", lambda partition, *_: drawn.append(partition))
    study = Study.open(tmp_path, "smoke", settings={"test_fraction": 0.5, "image_size": 12})
    experiment = paper_experiment("distributions")
    written = draw_experiment(experiment, study, tmp_path / "distributions")
    first = study.experiment(study.cells(experiment, 1)[0])
    expected = prepare(first)
    assert expected.dataset.shape == (3, 12, 12)
    assert drawn[0].to_json() == expected.partition.to_json()
    assert {path.suffix for path in written} == {".png", ".pdf", ".svg"}
    assert len(written) == 10 * 3  # ten panels, as in the paper
    assert [len(partition.train) for partition in drawn[::3]] == [4] * 10  # this scale's number of clients
