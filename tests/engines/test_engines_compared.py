"""Noise, attacks, robust aggregation and unstable clients give the same run on every engine, and after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedl2g
from fedl2g.experiment import Experiment
from fedl2g.runs.directory import RunDirectory

HARD: dict[str, Any] = {
    "method": "feddistill",
    "samples": 80,
    "image_size": 16,
    "partition": "dirichlet:1",
    "models": "small_cnn",
    "clients": 5,
    "rounds": 3,
    "noise": {"std": 0.05, "coefficient": 0.1, "scale": "relative"},
    "attack": {"share": 0.2, "kind": "noise", "strength": 3.0},
    "aggregation": {"rule": "trimmed_mean", "trim": 0.25},
    "availability": {"dropout_before": 0.2, "dropout_after": 0.2, "speed_spread": 1.0, "deadline": 1.0, "late": "use"},
}


PRIVATE: dict[str, Any] = {
    **{name: HARD[name] for name in ("method", "samples", "image_size", "partition", "models", "clients", "rounds")},
    "participation": 0.6,
    "availability": {"dropout_before": 0.2, "dropout_after": 0.2},
}


def _history(path: Path) -> list[dict[str, Any]]:
    records = [record.to_dict() for record in RunDirectory.open(path).history()]
    return [{name: value for name, value in record.items() if "seconds" not in name} for record in records]


def test_a_hard_world_is_the_same_on_workers_and_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedl2g.engines.workers.step_seconds", lambda *a, **k: 1.0)  # measured for nothing here
    fedl2g.run(Experiment(**HARD), tmp_path / "inline")
    expected = _history(tmp_path / "inline")
    assert any(record["late"] for record in expected)
    assert any(record["hostile"] for record in expected)
    fedl2g.run(Experiment(**HARD, execution={"engine": "workers", "workers": 2}), tmp_path / "workers")
    assert _history(tmp_path / "workers") == expected
    kept = {"checkpoint_every": 1}
    fedl2g.run(Experiment(**HARD, execution=kept), tmp_path / "resumed")
    run = RunDirectory.open(tmp_path / "resumed")
    newest = sorted(run.checkpoints.glob("round-*"))[-1]
    newest.rename(tmp_path / "lost")  # as if the last round had not been reached
    (run.path / "result.json").unlink()
    run.metrics.write_text("")
    fedl2g.resume(run.path)
    assert _history(run.path) == expected


@pytest.mark.parametrize(
    "privacy",
    [
        {"clip": 1.0, "noise_multiplier": 1.0, "noise": "client"},
        {"clip": 1.0, "noise_multiplier": 1.0, "noise": "server"},
        {"clip": 1.0, "noise_multiplier": 0.5, "denominator": "counted"},
        {"dense_uploads": True},
    ],
    ids=["client", "server", "counted", "dense"],
)
def test_a_private_world_is_the_same_on_workers(
    privacy: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedl2g.engines.workers.step_seconds", lambda *a, **k: 1.0)
    outcomes = []
    for engine in ("inline", "workers"):
        path = tmp_path / engine
        execution = {"engine": engine, "workers": 2, "checkpoint_every": 3}
        fedl2g.run(Experiment(**{**PRIVATE, "privacy": privacy}, execution=execution), path)
        outcomes.append((_history(path), _tensors(path)))
    assert outcomes[0] == outcomes[1]
    if "clip" in privacy:
        assert outcomes[0][0][-1]["privacy"]["epsilon"] > 0
        plain = Experiment(**{**PRIVATE, "privacy": {**privacy, "noise_multiplier": 1e-6}})
        fedl2g.run(plain, tmp_path / "plain")
        assert _history(tmp_path / "plain") != outcomes[0][0]  # the noise does show in these numbers


def _tensors(path: Path) -> dict[str, bytes]:
    files = max((path / "checkpoints").glob("round-*")).glob("*.safetensors")
    return {file.name: file.read_bytes() for file in files}
