"""`compare` as a user types it, on a problem of a second."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny import TINY

from fedl2g.folder import Folder
from fedl2g.methods.registry import get_method
from fedl2g.seals import read_sealed


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
    assert read_sealed(Folder(tmp_path / "c"), "comparison.json") == found
    assert (tmp_path / "c" / "curves.png").exists()
    shown = fedl2g("compare", *TINY, "--methods", "feddistill,local", "--out", "c")
    assert "local" in shown.out
    assert "1 of 2 runs failed" in shown.sentence

    for arguments in (("compare", "--methods", "feddistill"), ("run", "--method", "feddistill")):
        alone = fedl2g(*arguments, *TINY, "--out", arguments[0])
        assert alone.code == 2
        assert "before its first evaluation" in alone.sentence
        assert alone.out == ""


def test_compare_ends_in_a_verdict_on_every_method(fedl2g, tmp_path: Path) -> None:
    arguments = ("compare", *TINY, "--methods", "feddistill,local,fedl2g-f:warmup_rounds=1", "--out", "c")
    first = fedl2g(*arguments, "--json")
    found = json.loads(first.out)
    assert found["against"] == "local"
    assert [one["method"] for one in found["verdicts"]] == ["feddistill", "fedl2g-f:warmup_rounds=1"]
    assert read_sealed(Folder(tmp_path / "c"), "comparison.json") == found
    for one in found["verdicts"]:
        accuracies = [found["methods"][name]["best_accuracy"]["mean"] for name in (one["method"], "local")]
        assert one["difference"] == pytest.approx(accuracies[0] - accuracies[1])
        assert one["low"] <= one["difference"] <= one["high"]
        assert one["covers"] == "clients and test samples"
        assert one["gain"] + one["unchanged"] + one["lose"] == len(one["clients"]) == 3
    shown = fedl2g(*arguments)
    sentences = [one["sentence"] for one in found["verdicts"]]
    assert [line for line in shown.out.splitlines() if " against local: " in line] == sentences

    other = fedl2g(*arguments, "--against", "feddistill", "--json")
    assert [one["method"] for one in json.loads(other.out)["verdicts"]] == ["local", "fedl2g-f:warmup_rounds=1"]
    without = fedl2g("compare", *TINY, "--methods", "feddistill,fedproto", "--out", "d")
    assert "No verdict: add local to --methods, or name one of the methods with --against." in without.out
    refused = fedl2g(*arguments, "--against", "fedgh")
    assert refused.code == 2
    assert refused.sentence.startswith("fedl2g: against: fedgh is not among the methods")
