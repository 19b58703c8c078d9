"""Directories that somebody built to do harm: every command refuses them in a sentence or is not touched by them.

Each file of a finished run, and of a folder of the paper's runs, is replaced by everything that a name in a folder can
be, and by contents that are too large, too deep or hold code and control characters. No command may write outside the
directory, run code, end in a traceback, take long or take much memory.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import fedl2g
from commands import READING, ask, drawn_as_text
from fedl2g.experiment import Experiment
from fedl2g.paper.catalog import paper_experiment
from fedl2g.paper.convergence import Problem, run_convergence
from fedl2g.paper.study import Study
from forging import TINY, reseal, sealed_again

pytestmark = pytest.mark.faults

SECONDS = 60
MEGABYTES = 600
SETTINGS = (
    "--method", "fedproto", "--dataset", "digits", "--samples", "60", "--partition", "iid", "--models", "small_cnn",
    "--clients", "2", "--rounds", "3", "--set", "image_size=16", "--set", "execution.checkpoint_every=1",
)  # fmt: skip
COMMANDS: dict[str, tuple[str, ...]] = {
    **{name: command("run") for name, command in READING.items()},
    "export": ("export", "run", "--client", "0", "--out", "out/model"),
    "export --which last": ("export", "run", "--client", "1", "--which", "last", "--out", "out/model"),
    "report with t-SNE": ("report", "run", "--quiet", "--out", "out/report.html"),
    "plot in the run": ("plot", "run"),
    "predict": ("predict", "run", "images.npy"),
    "resume": ("resume", "run", "--quiet"),
    "run": ("run", *SETTINGS, "--quiet", "--out", "run"),
    "compare": ("compare", *SETTINGS[2:], "--methods", "fedproto", "--quiet", "--out", "."),
    "show --trust": ("show", "run", "--trust"),
    "report --trust": ("report", "run", "--quiet", "--trust", "--out", "out/report.html"),
    "resume --trust": ("resume", "run", "--trust", "--rounds", "3", "--quiet", "--track", "tensorboard"),
}
QUICK = ("list", "list --json", "show", "show --json", "export", "predict", "resume")
WRITING = ("resume", "resume --trust", "run", "compare")  # they may have repaired or replaced what they found
OF_A_STUDY: dict[str, tuple[str, ...]] = {
    "paper show": ("paper", "show", "data", "--scale", "smoke", "--out", "study"),
    "paper show --trust": ("paper", "show", "data", "--scale", "smoke", "--out", "study", "--trust"),
    "paper show convergence": ("paper", "show", "convergence", "--scale", "smoke", "--out", "study"),
    "list": ("list", "study"),
    "watch": ("watch", "study", "--once", "out/page.html", "--quiet"),
    "report": ("report", "study", "--no-tsne", "--quiet", "--out", "out/report.html"),
}
CODE = "import pathlib; pathlib.Path(__file__).with_name('was imported').touch()\n"


def link(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "mine")


def link_to_nothing(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "not yet")


def link_to_a_folder(path: Path, outside: Path) -> None:
    path.symlink_to(outside)


def other_name_of_a_file(path: Path, outside: Path) -> None:
    path.hardlink_to(outside / "mine")


def endless_device(path: Path, outside: Path) -> None:
    path.symlink_to("/dev/zero")


def fifo(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def listening_socket(path: Path, outside: Path) -> None:
    with chdir(path.parent), socket.socket(socket.AF_UNIX) as made:  # the names of sockets are short
        made.bind(path.name)


def folder(path: Path, outside: Path) -> None:
    path.mkdir()


def enormous(path: Path, outside: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


def deep(path: Path, outside: Path) -> None:
    path.write_text("[" * 300_000)


def no_text(path: Path, outside: Path) -> None:
    path.write_bytes(bytes(range(256)) * 16)


def forged(path: Path, text: str) -> None:
    """Put a text into all strings of a file that is JSON or TOML, and seal the run anew."""
    run = next((folder for folder in path.parents if (folder / "run.json").exists() or folder.name == "run"), None)
    content = path.with_name(f"{path.name}.sound").read_text()
    if path.suffix == ".toml":
        path.write_text(content.replace("small_cnn", text).replace("digits", text))
    else:
        path.write_text(json.dumps(_with(json.loads(content), text)))
    if run is not None:
        reseal(run)
    else:
        sealed_again(path, json.loads(path.read_text()))


def _with(value: Any, text: str) -> Any:
    if isinstance(value, dict):
        return {name: _with(inner, text) for name, inner in value.items()}
    if isinstance(value, list):
        return [_with(inner, text) for inner in value]
    return text if isinstance(value, str) else value


def control_characters(path: Path, outside: Path) -> None:
    forged(path, "\\u001b]0;owned\\u0007" if path.suffix == ".toml" else "\x1b]0;owned\x07")


def code(path: Path, outside: Path) -> None:
    forged(path, "evil:network")


def way_out(path: Path, outside: Path) -> None:
    forged(path, str(outside / "new"))


ANYWHERE = [
    link, link_to_nothing, link_to_a_folder, other_name_of_a_file, endless_device, fifo, listening_socket, folder,
    enormous, deep, no_text,
]  # fmt: skip
IN_TEXT = [control_characters, code, way_out]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("sound") / "run"
    with pytest.MonkeyPatch.context() as patch:
        drawn_as_text(patch)
        fedl2g.run(Experiment(**TINY), path, quiet=True)
        yield path


def state_of(outside: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(outside.rglob("*")) if path.is_file()}


def too_long(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"a command took more than {SECONDS} s")


class Scene:
    """A folder in which a hostile directory lies beside what is not its own."""

    def __init__(self, folder: Path, sound: Path, commands: dict[str, tuple[str, ...]], quick: Sequence[str]) -> None:
        self.folder, self.sound, self.outside = folder, sound, folder / "outside"
        self.commands, self.quick = commands, quick
        self.slow = [name for name in commands if name not in quick]  # two in turn, each for all files and kinds
        self.outside.mkdir()
        (self.outside / "mine").write_text("mine")
        (folder / "evil.py").write_text(CODE)
        self.before = state_of(self.outside)
        self.asked = self.refused = 0

    def try_all(self, name: str, made: Callable[[Path, Path], None], turn: int) -> None:
        """Replace a file or folder, and ask the commands whose turn it is."""
        self.build(name, made)
        for command in (*self.quick, *(self.slow[(turn + more) % len(self.slow)] for more in (0, 1) if self.slow)):
            if made is code and "--trust" in self.commands[command]:
                continue  # that is what trust is for
            signal.alarm(SECONDS)
            try:
                said = ask(self.commands[command], self.folder)
            except Exception as error:
                raise AssertionError(f"{command} with {name}: {made.__name__}") from error
            finally:
                signal.alarm(0)
            where = f"{command} with {name}: {made.__name__}: {said}"
            assert said.code in (0, 2), where
            assert said.code == 0 or (said.err.startswith("fedl2g: ") and said.err.count("\n") == 1), where
            assert not any(character in said.out + said.err for character in "\x1b\x07"), where
            assert state_of(self.outside) == self.before, where
            assert not (self.folder / "was imported").exists(), where
            self.asked += 1
            self.refused += said.code == 2
            if command in WRITING or command.startswith("paper"):
                self.build(name, made)

    def build(self, name: str, made: Callable[[Path, Path], None]) -> None:
        here = self.folder / self.sound.name
        shutil.rmtree(here, ignore_errors=True)
        shutil.copytree(self.sound, here)
        path = here / name
        kept = path.with_name(f"{path.name}.sound")
        if path.exists():
            path.rename(kept)
        made(path, self.outside)
        if kept.exists():
            shutil.rmtree(kept) if kept.is_dir() else kept.unlink()


@pytest.fixture
def in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FEDL2G_TRACK", "")
    # What an export starts from is read; that it is translated to ONNX takes seconds and reads nothing more.
    monkeypatch.setattr("fedl2g.deploy.export.write_programs", lambda *_: [])
    before = signal.signal(signal.SIGALRM, too_long)
    yield
    signal.signal(signal.SIGALRM, before)


def names(sound: Path) -> list[str]:
    """One of each kind of file and folder in a run, and those that only some commands write."""
    last = sorted((sound / "checkpoints").glob("round-*"))[-1]
    found = [path for path in sound.iterdir() if not path.name.startswith(".")]
    new = ("scratch", "scores.json", "sites.json", "tensorboard", "figures/curves.png", "checkpoints/round-000003")
    return sorted({*(str(path.relative_to(sound)) for path in (*found, *last.rglob("*"), last)), *new})


def try_each(scene: Scene, made: Callable[[Path, Path], None], chosen: Sequence[str]) -> dict[str, int]:
    """What was asked and refused, with each of the names made so."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number, name in enumerate(chosen):
        scene.try_all(name, made, number + [*ANYWHERE, *IN_TEXT].index(made))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < MEGABYTES
    return {"built": len(chosen), "commands asked": scene.asked, "refused in a sentence": scene.refused, "harmed": 0}


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("made", [*ANYWHERE, *IN_TEXT], ids=lambda made: made.__name__)
def test_no_command_is_harmed_by_a_hostile_directory(
    made: Callable[[Path, Path], None], tmp_path: Path, sound: Path, record_property: Callable[[str, object], None]
) -> None:
    scene = Scene(tmp_path, sound, COMMANDS, QUICK)
    chosen = [name for name in names(sound) if made in ANYWHERE or (sound / name).suffix in (".json", ".toml")]
    counts = try_each(scene, made, [name for name in chosen if made in ANYWHERE or (sound / name).exists()])
    assert scene.refused >= len(chosen) / 2
    record_property("figures", {"hostile directories": counts})


@pytest.fixture(scope="module")
def study(sound: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the paper's runs: a run, a failure and what was measured of the theorems."""
    root = tmp_path_factory.mktemp("sound") / "study"
    made = Study.open(root, "smoke")
    cells = made.cells(paper_experiment("data"))
    made.write_plan(cells)
    made.note_failure(cells[1], "no room")
    shutil.copytree(sound, made.path(cells[0]))
    run_convergence(made.folder / "convergence.json", Problem(rounds=2))
    return root


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("made", [*ANYWHERE, *IN_TEXT], ids=lambda made: made.__name__)
def test_no_command_is_harmed_by_a_hostile_folder_of_runs(
    made: Callable[[Path, Path], None], tmp_path: Path, study: Path, record_property: Callable[[str, object], None]
) -> None:
    scene = Scene(tmp_path, study, OF_A_STUDY, ("paper show", "list"))
    cell = next((study / "smoke" / "cells").iterdir()).relative_to(study)
    described = [f"smoke/{name}.json" for name in ("study", "plan", "failures", "convergence")]
    others = ["smoke", "smoke/cells", str(cell), f"{cell}/run.json", f"{cell}/result.json", "smoke/data.md"]
    counts = try_each(scene, made, [*described, *others] if made in ANYWHERE else described)
    assert scene.refused or made in (code, way_out)  # a name of code or a path is only shown there, as any text
    record_property("figures", {"hostile folders of runs": counts})
