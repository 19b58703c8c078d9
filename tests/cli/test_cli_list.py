"""`fedl2g list`: running, interrupted, finished and damaged runs, what differs, sorting and filters; no training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedl2g.errors import SettingError
from fedl2g.experiment import Experiment
from fedl2g.round.record import Accuracy, RoundRecord
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.overview import differences
from fedl2g.setup import prepare


@pytest.fixture
def started(tmp_path: Path) -> Callable[..., RunDirectory]:
    """Make a run directory with one round of this accuracy, as a stopped process leaves it."""

    def make(name: str, accuracy: float, **settings: Any) -> RunDirectory:
        common = {"samples": 60, "clients": 2, "partition": "iid", "models": "small_cnn", "rounds": 3}
        run = RunDirectory.create(tmp_path / name, prepare(Experiment(**{**common, **settings})))
        run.records.append(RoundRecord(0, accuracy=Accuracy(accuracy, accuracy, 0.0, {0: accuracy, 1: accuracy}, {})))
        return run

    return make


def test_differing_settings_are_told_apart() -> None:
    assert differences(
        [
            {"method.name": "fedl2g-f", "method.server_lr": 0, "seed": 0, "batch_size": 10, "execution.workers": 2},
            {"method.name": "fedl2g-f", "method.server_lr": 100, "seed": 1, "batch_size": 10, "execution.workers": 3},
            {"method.name": "local", "seed": 0, "batch_size": 10, "samples": 50},
        ]
    ) == [{"method.server_lr": 0}, {"method.server_lr": 100}, {"samples": 50}]


def test_list_tells_runs_apart_sorts_filters_and_survives_damage(
    fedl2g: Any, started: Callable[..., RunDirectory], tmp_path: Path
) -> None:
    still = {"name": "fedl2g-f", "server_lr": 0.0, "warmup_rounds": 1}
    started("a", 0.25, method=still)
    started("b", 0.75, method={**still, "server_lr": 100.0})
    started("c", 0.5, method="local")
    started("d", 0.5, method="local", seed=1)
    (tmp_path / "d" / "run.json").write_text("{")

    with RunDirectory(tmp_path / "a").lock():
        rows = {row["run"]: row for row in json.loads(fedl2g("list", ".", "--json").out)}
    assert {name: row["status"] for name, row in rows.items()} == {
        "a": "running", "b": "interrupted", "c": "interrupted", "d": "damaged",
    }  # fmt: skip
    assert rows["a"]["differs"] == {"method.server_lr": 0.0}
    assert rows["b"]["differs"] == {"method.server_lr": 100.0}
    assert "run.json" in rows["d"]["problem"]

    listed = fedl2g("list", ".", "--sort", "accuracy")
    assert listed.code == 0
    lines = listed.out.splitlines()
    assert [line.split()[-1] for line in lines[1:5]] == ["b", "c", "a", "d"]
    assert "method.server_lr=100.0" in lines[1]
    assert "damaged" in lines[4]
    assert "restore it from a copy" in lines[5]
    chosen = json.loads(fedl2g("list", ".", "--sort", "accuracy", "--method", "fedl2g-f", "--json").out)
    assert [row["run"] for row in chosen] == ["b", "a"]
    assert fedl2g("list", ".", "--status", "finished").out == "no such runs in .\n"


def test_a_pattern_may_match_files_beside_runs(
    fedl2g: Any, started: Callable[..., RunDirectory], tmp_path: Path
) -> None:
    started("c/a", 0.5, method="local")
    (tmp_path / "c" / "comparison.json").write_text("{}")
    outcome = fedl2g("report", "c/a", "c/comparison.json", "--no-tsne", "-q", "-o", "page.html")
    assert (outcome.code, outcome.out) == (0, "page.html\n")
    assert "a file" in fedl2g("report", "c/comparison.json", "-q").sentence


def test_hints_can_be_pasted_into_a_shell(fedl2g: Any, started: Callable[..., RunDirectory]) -> None:
    started("my run", 0.5, method="local")
    assert "`fedl2g resume 'my run'`" in fedl2g("show", "my run").out


def test_export_names_what_is_wrong_and_overwrites_nothing(
    fedl2g: Any, started: Callable[..., RunDirectory], tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    assert "empty: not a run directory" in fedl2g("export", "empty", "--out", "m").sentence
    started("a", 0.5, method="local")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "model.json").write_text("mine")
    refused = fedl2g("export", "a", "--client", "0", "--out", "m")
    assert refused.code == 2
    assert "--force" in refused.sentence
    assert (tmp_path / "m" / "model.json").read_text() == "mine"


def test_data_show_names_the_classes(fedl2g: Any, tmp_path: Path) -> None:
    import numpy as np
    from PIL import Image

    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(8):
            Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(tmp_path / "pets" / name / f"{number}.png")
    arguments = ("data", "show", "--dataset", "pets", "--partition", "iid", "--clients", "2", "-q")
    assert fedl2g(*arguments).out.splitlines()[-1] == "classes, from the left: 0 cat, 1 dog"
    assert json.loads(fedl2g(*arguments, "--json").out)["classes"] == ["cat", "dog"]
    (tmp_path / "pets" / "cat" / "0.png").write_bytes(b"not an image")
    assert "0.png: is not an image" in (broken := fedl2g(*arguments).sentence)
    assert "BytesIO" not in broken


def test_the_paper_into_a_file_is_a_sentence_and_a_dry_run_prints_its_cells(fedl2g: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "--out: file/x/small cannot be written" in fedl2g("paper", "run", "distributions", "-o", "file/x").sentence
    cells = fedl2g("paper", "run", "quiz_size", "--scale", "smoke", "--dry-run").out.splitlines()
    assert any(line.startswith("fedl2g-l ") and "second" in line for line in cells)


def test_a_plugin_of_the_run_is_found_again_with_trust(
    fedl2g: Any, started: Callable[..., RunDirectory], tmp_path: Path, registries_as_found: None
) -> None:
    from fedl2g import references
    from fedl2g.methods.registry import methods

    plugin = tmp_path / "my_list_method.py"
    plugin.write_text(
        "from fedl2g import register_method\n"
        "from fedl2g.methods.local import *\n"
        "from fedl2g.methods.registry import get_method\n"
        "m = get_method('local')\n"
        "class Client(m.client): pass\n"
        "register_method('mine', options=m.options, server=m.server, client=Client, traits=m.traits)\n"
    )
    references.load_plugin(str(plugin))
    run = started("a", 0.5, method="mine")
    references._plugins.remove(str(plugin))  # as in a new process
    del methods._registered["mine"]
    with pytest.raises(SettingError, match=r"my_list_method\.py.*--trust"):
        RunDirectory.open(run.path).experiment()
    assert RunDirectory.open(run.path, trust=True).experiment().method.name == "mine"
