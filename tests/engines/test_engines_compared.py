"""Every method gives the same bits inline and on two workers, with each setting; all settings at once after a resume.

tests/flower/test_flower_simulation.py compares the Flower simulation with inline.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_helpers import bits, federation_of

import fedl2g
from compared import PAIRS, REFUSED, experiment
from fedl2g.engines.base import open_engine
from fedl2g.errors import SettingError
from fedl2g.experiment import Experiment
from fedl2g.methods.registry import get_method
from fedl2g.runs.directory import RunDirectory
from fedl2g.setup import prepare
from method_settings import BUILT_IN

pytestmark = pytest.mark.usefixtures("kept_workers")

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


def _history(path: Path) -> list[dict[str, Any]]:
    records = [record.to_dict() for record in RunDirectory.open(path).history()]
    return [{name: value for name, value in record.items() if "seconds" not in name} for record in records]


def test_a_hard_world_is_the_same_on_workers_and_after_an_interruption(tmp_path: Path) -> None:
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


class Runs:
    """What a run has come to, of each engine, method and setting; each is made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: dict[tuple[str, str, str], dict[str, Any]] = {}

    def __call__(self, method: str, setting: str, engine: str = "inline") -> dict[str, Any]:
        key = (method, setting, engine)
        if key not in self.made:
            setup = prepare(experiment(*key))
            federation = federation_of(setup, open_engine(setup))
            try:
                federation.run()
                self.made[key] = bits(federation, self.folder / str(len(self.made)))
            finally:
                federation.engine.close()
        return self.made[key]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("compared"))


@pytest.mark.parametrize(("method", "setting"), PAIRS)
def test_inline_and_workers_give_the_same_bits(method: str, setting: str, runs: Runs) -> None:
    inline, workers = runs(method, setting), runs(method, setting, "workers")
    assert [record["round"] for record in inline["records"]] == [0, 1, 2]
    assert inline["clients"]
    assert inline == workers


@pytest.mark.parametrize(("method", "setting"), sorted(REFUSED))
def test_what_is_not_compared_is_refused(method: str, setting: str) -> None:
    with pytest.raises(SettingError, match=rf"^(privacy\.clip|privacy\.dense_uploads|aggregation\.rule): {method}"):
        experiment(method, setting)


@pytest.mark.parametrize("method", BUILT_IN)
def test_the_settings_show_in_what_is_compared(method: str, runs: Runs) -> None:
    """Equal engines prove nothing of a setting that does nothing: each shows in the records or the server's state."""
    uploads = get_method(method).traits.uploads
    without_effect = {
        "nothing": {"plain", "robust rule", "dense"},
        "network": {"plain", "dense"},
        "class vectors": {"plain"},
    }[uploads]
    found = {setting: runs(method, setting) for name, setting in PAIRS if name == method}
    plain = found["plain"]
    same = {s for s, f in found.items() if (f["records"], f["server"]) == (plain["records"], plain["server"])}
    assert same == without_effect & found.keys()
