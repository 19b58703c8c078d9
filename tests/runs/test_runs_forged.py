"""Run directories that somebody forged and sealed anew: what does not fit together is refused in a sentence."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import safetensors.torch
import torch

import fedl2g
from commands import Said, ask, drawn_as_text
from fedl2g.experiment import Experiment
from fedl2g.folder import Folder
from fedl2g.runs.locking import is_locked
from fedl2g.runs.plan import PlannedRun, write_plan
from fedl2g.seals import digest
from forging import TINY, reseal

REPORT = ("report", "run", "--quiet", "--out", "out/report.html")
TSNE = ("plot", "run", "--figure", "tsne", "--out", "out/tsne.svg")
EXPORT = ("export", "run", "--client", "1", "--out", "out/model")
RESUME = ("resume", "run", "--quiet")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("sound") / "run"
    with pytest.MonkeyPatch.context() as patch:
        drawn_as_text(patch)
        fedl2g.run(Experiment(**TINY), path, quiet=True)
        yield path


@pytest.fixture
def run(sound: Path, tmp_path: Path) -> Path:
    return copytree(sound, tmp_path / "run")


def unfinished(run: Path) -> None:
    """As if the run had been killed before its last round."""
    (run / "result.json").unlink()
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(b"".join(lines[:2]))
    for path in sorted((run / "checkpoints" / "round-000002").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (run / "checkpoints" / "round-000002").rmdir()


def is_sentence(said: Said) -> bool:
    return said.code == 2 and said.out == "" and said.err.startswith("fedl2g: ") and said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda sides: sides["train"][0].append(99_999), "no sample has its index 99999"),
        (lambda sides: sides["test"][1].append(-1), "no sample has its index -1"),
        (lambda sides: [side.append([0]) for side in sides.values()], "it is for 3 clients, and the run has 2"),
    ],
)
def test_a_partition_that_does_not_fit_is_refused(
    change: Callable[[dict[str, Any]], object], sentence: str, run: Path
) -> None:
    sides = json.loads((run / "partition.json").read_text())
    change(sides)
    (run / "partition.json").write_text(json.dumps(sides))
    reseal(run)
    for command in (REPORT, EXPORT):
        said = ask(command, run.parent)
        assert is_sentence(said)
        assert f"partition.json: does not fit the run, {sentence}" in said.err
    unfinished(run)
    assert sentence in ask(RESUME, run.parent).err


def test_an_experiment_with_other_clients_is_refused(run: Path) -> None:
    path = run / "experiment.toml"
    path.write_text(path.read_text().replace("clients = 2\n", "clients = 7\n"))
    reseal(run)
    said = ask(("export", "run", "--client", "5", "--out", "out/model"), run.parent)
    assert is_sentence(said)
    assert "experiment.toml and run.json belong to different runs" in said.err


@pytest.mark.parametrize("packages", [[1, 2], 3, "torch"])
def test_an_environment_of_another_form_is_refused(packages: object, run: Path) -> None:
    (run / "environment.json").write_text(json.dumps({"packages": packages}))
    reseal(run)
    for command in (REPORT, ("show", "run"), ("watch", "run", "--once", "out/page.html", "--quiet")):
        said = ask(command, run.parent)
        assert said.code == 2
        assert "environment.json: 'packages' is not a table of versions" in said.err


def test_models_that_are_no_names_are_left_out_of_the_page(run: Path) -> None:
    path = run / "experiment.toml"
    path.write_text(path.read_text().replace('models = "small_cnn"', "models = 7"))
    reseal(run)
    assert ask(("watch", "run", "--once", "out/page.html", "--quiet"), run.parent).code == 0


def forge_states(run: Path, made: Callable[[bytes], bytes]) -> None:
    """Replace every state in every checkpoint, and seal the checkpoints anew."""
    for path in (run / "checkpoints").rglob("state.json"):
        state = json.loads(path.read_text())["state"]
        for file in path.parent.glob("*.safetensors"):
            file.write_bytes(made(file.read_bytes()))
            state["files"][file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
        path.write_text(json.dumps({"state": state, "digest": digest(json.dumps(state).encode())}))


def of_unknown_type(content: bytes) -> bytes:
    header = json.dumps({"rows": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}).encode()
    return struct.pack("<Q", len(header)) + header + b"\0"


def without_numbers(content: bytes) -> bytes:
    state = safetensors.torch.load(content)
    return safetensors.torch.save(
        {
            name: torch.full_like(value, torch.nan) if value.is_floating_point() else value
            for name, value in state.items()
        }
    )


def test_a_state_of_a_type_that_torch_does_not_have_is_refused(run: Path) -> None:
    forge_states(run, of_unknown_type)
    said = ask(EXPORT, run.parent)
    assert is_sentence(said)
    assert "the checkpoint is damaged (client-000001.safetensors cannot be read" in said.err
    assert "t-SNE: left out" in ask(TSNE, run.parent).err


def test_a_report_does_without_networks_that_give_no_numbers(run: Path) -> None:
    forge_states(run, without_numbers)
    said = ask(REPORT, run.parent)
    assert said.code == 0
    assert "t-SNE: left out (run/checkpoints/round-000002: its networks give NaN or infinite values)" in said.err
    assert ask(TSNE, run.parent).code == 2


def test_a_lock_that_is_another_file_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("older releases of filelock empty the file that they open")

    monkeypatch.setattr("filelock.FileLock", refuse)
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").hardlink_to(tmp_path / "mine")
    assert not is_locked(Folder(tmp_path / "run"))
    (tmp_path / "mine").write_text("")
    assert not is_locked(Folder(tmp_path / "run"))


def test_a_large_limit_takes_no_memory(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"12")
    assert Folder(tmp_path).read("small", limit=2**60) == b"12"


def test_settings_of_a_tracker_in_a_run_are_refused(run: Path) -> None:
    pytest.importorskip("wandb")
    unfinished(run)
    (run / "wandb").mkdir()
    (run / "wandb" / "settings").write_text("[default]\nbase_url = http://127.0.0.1:9\n")
    said = ask((*RESUME, "--track", "wandb"), run.parent)
    assert said.code == 2
    assert "expected none in a run directory; remove the file" in said.err


def test_a_plan_is_no_larger_on_a_page_than_in_its_file(run: Path) -> None:
    write_plan(run.parent, [PlannedRun(f"r{number}", f"method {number}", number, 5) for number in range(300)])
    said = ask(("watch", ".", "--once", "out/page.html", "--quiet"), run.parent)
    assert said.code == 0
    assert "Too many methods and columns for a table." in said.files["page.html"]
    assert said.files["page.html"].count("method 299") <= 1
