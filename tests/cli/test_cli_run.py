"""`run`, `resume`, `list`, `show` and `plot` as a user types them, on a problem of a second."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny import TINY

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
    *rows, chosen = fedl2g("list", ".").out.splitlines()
    assert [line.split()[-1] for line in rows] == ["run", "a", "b"]
    assert chosen == "best: best round chosen on test data"

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
    monkeypatch.setattr("fedl2g.runs.console.PLAIN_EVERY_SECONDS", 0.0)
    outcome = fedl2g("run", *[word for word in TINY if word != "--quiet"], "--method", "local", "--json", "--out", "a")
    assert json.loads(outcome.out)["rounds"] == 2
    assert "round 2/2" in outcome.err
    assert "accuracy" in outcome.err
