"""Which samples choose the best round, and that everything that shows a best round says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedl2g
from fedl2g.experiment import Experiment
from fedl2g.round.record import Accuracy, RoundRecord, selected_record, selection_of
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.models import TrainedModels
from fedl2g.runs.result import summarize
from fedl2g.runs.scores import parse_metrics, score_run
from fedl2g.seals import read_sealed

Tiny = Callable[..., Experiment]


def record(round: int, test: float, validation: float | None) -> RoundRecord:
    return RoundRecord(round, accuracy=Accuracy(test, test, 0.0, {0: test}, samples={0: 8}, validation=validation))


def test_validation_chooses_and_the_test_accuracy_of_that_round_is_shown() -> None:
    history = [record(0, 0.25, 0.2), record(1, 0.5, 0.6), RoundRecord(2), record(3, 0.75, 0.6), record(4, 1.0, 0.5)]
    best = selected_record(history)
    assert best is not None
    assert best.round == 1  # the first of two equal ones, though later rounds are better on the test samples
    assert selection_of(history) == "validation"
    result = summarize(history, method="m", seed=0, status="finished", run="r")
    assert (result.best_round, result.best_accuracy, result.test_accuracy) == (1, 0.5, 0.5)
    assert (result.validation_accuracy, result.selection) == (0.6, "validation")
    without = [record(r.round, r.accuracy.pooled, None) for r in history if r.accuracy is not None]
    result = summarize(without, method="m", seed=0, status="finished", run="r")
    assert (result.best_round, result.test_accuracy, result.selection) == (4, 1.0, "test")
    assert result.validation_accuracy is None


def test_counts_are_whole_numbers_again() -> None:
    for samples in (1, 3, 7, 49, 1_000_003):
        for correct in (0, 1, samples // 3, samples - 1, samples):
            accuracy = Accuracy(0.0, 0.0, 0.0, {4: correct / samples}, samples={4: samples})
            assert accuracy.counts == {4: (correct, samples)}


@pytest.fixture(scope="module")
def run(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("validated") / "run"
    fedl2g.run(tiny(method="local", rounds=3, client_lr=0.1, validation_fraction=0.2, models="small_cnn"), path)
    return path


def test_a_run_counts_its_validation_samples_and_trains_without_them(run: Path) -> None:
    directory = RunDirectory.open(run)
    partition = directory.partition()
    for client in range(4):
        parts = [set(side[client].tolist()) for side in (partition.train, partition.validation, partition.test)]
        assert all(parts)
        assert sum(map(len, parts)) == len(set.union(*parts))
    result, history = directory.result(), directory.history()
    assert result is not None
    best = max(history, key=lambda r: r.accuracy.validation if r.accuracy and r.accuracy.validation else 0.0)
    assert (result.selection, result.best_round) == ("validation", best.round)
    held = sum(map(len, partition.validation))
    for one in history:
        assert one.accuracy is not None
        assert one.accuracy.validation is not None
        assert one.accuracy.validation * held == pytest.approx(round(one.accuracy.validation * held))


def area(positive: list[float], negative: list[float]) -> float:
    """AUROC as it is defined: how often a sample of the class scores higher than one of another; ties count half."""
    pairs = [(p > n) + 0.5 * (p == n) for p in positive for n in negative]
    return sum(pairs) / len(pairs)


def test_scores_of_the_best_models_by_client_architecture_and_class(run: Path) -> None:
    directory = RunDirectory.open(run)
    scores = score_run(directory, ("auroc", "confusion"))
    assert read_sealed(directory.folder, "scores.json", directory.records.run) == scores
    best = selected_record(directory.history())
    assert best is not None
    assert best.accuracy is not None
    assert (scores["round"], scores["selection"]) == (best.round, "validation")
    assert scores["overall"]["accuracy"] == pytest.approx(best.accuracy.pooled, abs=1e-12)
    models = TrainedModels(directory)
    labels: list[int] = []
    chances: list[list[float]] = []
    for client in models:
        truth, found = models.load(client).test_scores
        labels += truth.tolist()
        chances += found.double().softmax(1).tolist()
        own = scores["clients"][str(client)]
        assert (own["accuracy"], own["samples"]) == (pytest.approx(best.accuracy.clients[client]), len(truth))
        assert own["balanced_accuracy"] == pytest.approx(best.accuracy.balanced_clients[client], abs=1e-4)
        assert own["macro_f1"] == pytest.approx(best.accuracy.macro_f1_clients[client], abs=1e-4)
        for number, row in enumerate(own["confusion"]):
            assert sum(row) == truth.tolist().count(number)
    areas = {}
    for number, name in enumerate(scores["classes"]):
        column = [chance[number] for chance in chances]
        inside = [c for c, label in zip(column, labels, strict=True) if label == number]
        outside = [c for c, label in zip(column, labels, strict=True) if label != number]
        areas[name] = area(inside, outside)
        assert scores["classes"][name]["auroc"] == pytest.approx(areas[name])
        assert scores["classes"][name]["samples"] == len(inside)
    assert scores["overall"]["auroc"] == pytest.approx(sum(areas.values()) / len(areas))
    assert scores["architectures"] == {"small_cnn": scores["overall"]}
    plain = score_run(directory, ())
    assert "auroc" not in plain["overall"]
    assert "confusion" not in plain["overall"]


def test_metrics_are_known_by_name() -> None:
    assert parse_metrics(" confusion,auroc,auroc") == ("confusion", "auroc")
    with pytest.raises(fedl2g.errors.SettingError, match="did you mean 'auroc'"):
        parse_metrics("auc")


def shown(value: Any) -> str:
    from rich.console import Console

    console = Console(width=200)
    with console.capture() as capture:
        console.print(value)
    return " ".join(capture.get().split())


@pytest.mark.parametrize("selection", ["test", "validation"])
def test_every_table_page_and_json_says_how_the_best_round_was_chosen(
    selection: str, run: Path, tiny: Tiny, tmp_path: Path
) -> None:
    from fedl2g.report.comparison import comparison_table
    from fedl2g.report.page import write_report
    from fedl2g.report.score_tables import compared_scores_table, score_tables
    from fedl2g.report.tables import result_table
    from fedl2g.runs.overview import as_text, overviews

    path = run
    if selection == "test":
        path = tmp_path / "run"
        fedl2g.run(tiny(method="local", rounds=1, models="small_cnn"), path)
    directory = RunDirectory.open(path)
    result = directory.result()
    assert result is not None
    sentence = f"best round chosen on {selection} data"
    scores = score_run(directory, ())
    assert sentence in shown(result_table(result))
    assert sentence in shown(comparison_table({"local": [result]}))
    assert sentence in shown(score_tables(scores)[0])
    assert sentence in shown(compared_scores_table({"local": [scores]}))
    assert sentence in as_text(overviews([directory]))
    page = tmp_path / "report.html"
    write_report([path], page, tsne=False)
    assert sentence in page.read_text()
    assert result.to_dict()["selection"] == selection
    assert json.loads((path / "result.json").read_text())["test_accuracy"] == result.best_accuracy
