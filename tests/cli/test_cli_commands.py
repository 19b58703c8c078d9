"""The commands as a user types them, on a problem of a second."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny import TINY

from fedl2g.methods.registry import get_method

PROMISED = {
    "method", "seed", "rounds", "best_accuracy", "best_round", "last_accuracy", "mean_client_accuracy",
    "up_mb_per_round", "down_mb_per_round", "client_seconds_per_round", "server_seconds_per_round", "run",
}  # fmt: skip


def test_run_prints_one_json_object_and_leaves_a_run_directory(fedl2g, tmp_path: Path) -> None:
    outcome = fedl2g("run", *TINY, "--method", "fedl2g-l", "--set", "method.warmup_rounds=1", "--json", "--out", "a")
    assert outcome.code == 0
    assert len(outcome.out.splitlines()) == 1
    result = json.loads(outcome.out)
    assert result.keys() >= PROMISED
    assert 0 <= result["best_accuracy"] <= 1
    assert result["rounds"] == 2
    # Down: 3 clients x (10 x 10 floats + 10 ids).
    assert result["down_mb_per_round"] * 2**20 == pytest.approx(3 * (10 * 10 * 4 + 10 * 8))
    run = tmp_path / "a"
    assert {path.name for path in run.iterdir()} >= {
        "experiment.toml", "environment.json", "partition.json", "metrics.jsonl", "checkpoints", "result.json",
    }  # fmt: skip
    assert (run / "figures" / "curves.png").stat().st_size > 5000

    again = fedl2g("run", str(run / "experiment.toml"), "--quiet", "--json", "--out", "b")
    for name in ("best_accuracy", "last_accuracy", "best_loss", "up_mb_per_round"):
        assert json.loads(again.out)[name] == result[name]

    listed = json.loads(fedl2g("list", ".", "--json").out)
    assert {row["run"] for row in listed} == {"a", "b"}
    assert [line.split()[-1] for line in fedl2g("list", ".").out.splitlines()] == ["run", "a", "b"]

    shown = json.loads(fedl2g("show", "a", "--json").out)
    assert shown["result"]["best_accuracy"] == result["best_accuracy"]
    assert [record["round"] for record in shown["history"]] == [0, 1, 2]
    record = shown["history"][2]
    assert set(record["client_losses"]) == set(record["accuracy"]["clients"]) == {"0", "1", "2"}
    assert record["server"]["guide_distance"] > 0
    assert "fedl2g-l" in fedl2g("show", "a").out

    for suffix in ("png", "pdf", "svg"):
        assert fedl2g("plot", "a", "b", "-o", f"curves.{suffix}").code == 0
        assert (tmp_path / f"curves.{suffix}").stat().st_size > 2000

    other = fedl2g("run", *TINY, "--method", "local", "--out", "a")
    assert other.code == 2
    assert "another experiment" in other.sentence


def test_progress_goes_to_stderr(fedl2g, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedl2g.runs.progress.PLAIN_EVERY_SECONDS", 0.0)
    outcome = fedl2g("run", *[word for word in TINY if word != "--quiet"], "--method", "local", "--json", "--out", "a")
    assert json.loads(outcome.out)["rounds"] == 2
    assert "round 2/2" in outcome.err
    assert "accuracy" in outcome.err


def test_compare_uses_one_partition_and_the_same_initial_models(fedl2g, tmp_path: Path) -> None:
    arguments = ("compare", *TINY, "--methods", "local,fedl2g-f,fedl2g-f:server_lr=0", "--seeds", "2")
    options = ("--set", "method.warmup_rounds=1", "--out", "c")
    first = fedl2g(*arguments, *options, "--json")
    assert first.code == 0
    methods = json.loads(first.out)["methods"]
    assert list(methods) == ["local", "fedl2g-f", "fedl2g-f:server_lr=0"]
    for name, found in methods.items():
        accuracies = [run["best_accuracy"] for run in found["runs"]]
        assert [run["seed"] for run in found["runs"]] == [0, 1], name
        assert found["best_accuracy"]["mean"] == pytest.approx(sum(accuracies) / 2)
        assert found["best_accuracy"]["std"] == pytest.approx(abs(accuracies[0] - accuracies[1]) / 2**0.5)
    starts = {}
    for run in sorted((tmp_path / "c").glob("*-s?")):
        seed = run.name[-1]
        record = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
        start = ((run / "partition.json").read_text(), record["accuracy"]["clients"])
        assert starts.setdefault(seed, start) == start
    assert starts["0"] != starts["1"]
    assert (tmp_path / "c" / "curves.png").exists()

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "c").glob("*/metrics.jsonl")}
    again = fedl2g(*arguments, *options)  # finished runs are not run again
    assert "fedl2g-f:server_lr=0" in again.out
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "c").glob("*/metrics.jsonl")}

    refused = fedl2g(*arguments, "--set", "method.warmup_rounds=0", "--out", "c")
    assert refused.code == 2
    assert "another experiment" in refused.sentence


def test_compare_goes_on_without_a_run_that_fails_and_says_which(
    fedl2g, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = get_method("feddistill").server
    monkeypatch.setattr(server, "broadcast", lambda self, round: {"rows": torch.full((1, 2), torch.nan)})
    outcome = fedl2g("compare", *TINY, "--methods", "feddistill,local", "--out", "c", "--json")
    assert outcome.code == 1
    assert "1 of 2 runs failed: feddistill-s0: " in outcome.sentence
    assert "before its first evaluation" in outcome.sentence
    found = json.loads(outcome.out)
    assert list(found["methods"]) == ["local"]
    assert list(found["failed"]) == ["feddistill-s0"]
    assert json.loads((tmp_path / "c" / "comparison.json").read_text()) == found
    assert (tmp_path / "c" / "curves.png").exists()
    shown = fedl2g("compare", *TINY, "--methods", "feddistill,local", "--out", "c")
    assert "local" in shown.out
    assert "1 of 2 runs failed" in shown.sentence

    for arguments in (("compare", "--methods", "feddistill"), ("run", "--method", "feddistill")):
        alone = fedl2g(*arguments, *TINY, "--out", arguments[0])
        assert alone.code == 2
        assert "before its first evaluation" in alone.sentence
        assert alone.out == ""


def test_what_there_is(fedl2g) -> None:
    names = [method["name"] for method in json.loads(fedl2g("methods", "--json").out)]
    assert names[:10] == [
        "local", "lg-fedavg", "fedgh", "fml", "fedkd", "fedmrl", "feddistill", "fedproto", "fedl2g-l", "fedl2g-f",
    ]  # fmt: skip
    models = json.loads(fedl2g("models", "--no-time", "--json", "--quiet").out)
    sizes = {row["name"]: (row["parameters"], row["feature_width"]) for row in models["architectures"]}
    assert sizes["cnn4"] == (873_408 + 513 * 100, 512)
    assert sizes["resnet50"][1] == 2048
    assert sizes["resnet4"][1] == 64
    assert "htm10" in models["groups"]
    assert {row["name"] for row in json.loads(fedl2g("datasets", "--json").out)} == {
        "digits", "cifar10", "cifar100", "flowers102", "tiny-imagenet", "domainnet",
    }  # fmt: skip
    for command in ("methods", "datasets"):
        assert fedl2g(command).code == 0
    explained = fedl2g("explain").out
    for setting in ("rounds:", "method.quiz_size:", "execution.engine:", "partition:"):
        assert setting in explained
    assert fedl2g("--version").out.strip()


def test_data_show_draws_who_holds_what(fedl2g, tmp_path: Path) -> None:
    arguments = ("data", "show", "--partition", "pathological:2", "--clients", "10", "--quiet")
    shown = json.loads(fedl2g(*arguments, "--json", "-o", "bubbles.png").out)
    assert sum(shown["sizes"]) == 1797
    assert all(sum(count > 0 for count in row) <= 2 for row in shown["counts"])
    assert (tmp_path / "bubbles.png").stat().st_size > 5000
    assert len(fedl2g(*arguments).out.splitlines()) > 10
