"""Run directories that somebody built to do harm: every command refuses them in a sentence or is not touched by them.

Each file of a finished run is replaced by everything that a name in a folder can be, and by contents that are too
large, too deep or hold code and control characters. No command may write outside the directory, run code, end
in a traceback, take long or take much memory.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import fedl2g
from commands import READING, ask, drawn_as_text
from fedl2g.experiment import Experiment
from forging import TINY, reseal

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
}
QUICK = ("list", "list --json", "show", "show --json", "export", "predict", "resume")
SLOW = tuple(name for name in COMMANDS if name not in QUICK)  # one of them in turn, each for every file and every kind
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
    run = next(folder for folder in path.parents if (folder / "run.json").exists() or folder.name == "run")
    content = path.with_name(f"{path.name}.sound").read_text()
    if path.suffix == ".toml":
        path.write_text(content.replace("small_cnn", text).replace("digits", text))
    else:
        path.write_text(json.dumps(_with(json.loads(content), text)))
    reseal(run)


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
    """A folder in which a hostile run lies beside what is not its own."""

    def __init__(self, folder: Path, sound: Path) -> None:
        self.folder, self.sound, self.outside = folder, sound, folder / "outside"
        self.outside.mkdir()
        (self.outside / "mine").write_text("mine")
        (folder / "evil.py").write_text(CODE)
        self.before = state_of(self.outside)
        self.asked = self.refused = 0

    def try_all(self, name: str, made: Callable[[Path, Path], None], turn: int) -> None:
        """Replace a file or folder of the run, and ask the commands whose turn it is."""
        self.build(name, made)
        for command in (*QUICK, *(SLOW[(turn + more) % len(SLOW)] for more in (0, 1))):
            signal.alarm(SECONDS)
            try:
                said = ask(COMMANDS[command], self.folder)
            except Exception as error:
                raise AssertionError(f"{command} of a run with {name}: {made.__name__}") from error
            finally:
                signal.alarm(0)
            where = f"{command} of a run with {name}: {made.__name__}: {said}"
            assert said.code in (0, 2), where
            assert said.code == 0 or (said.err.startswith("fedl2g: ") and said.err.count("\n") == 1), where
            assert not any(character in said.out + said.err for character in "\x1b\x07"), where
            assert state_of(self.outside) == self.before, where
            assert not (self.folder / "was imported").exists(), where
            self.asked += 1
            self.refused += said.code == 2
            if command in ("resume", "run", "compare"):  # they may have repaired or replaced it
                self.build(name, made)

    def build(self, name: str, made: Callable[[Path, Path], None]) -> None:
        run = self.folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(self.sound, run)
        path = run / name
        kept = path.with_name(f"{path.name}.sound")
        path.rename(kept)
        made(path, self.outside)
        shutil.rmtree(kept) if kept.is_dir() else kept.unlink()


@pytest.fixture
def scene(tmp_path: Path, sound: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.syspath_prepend(str(tmp_path))
    # What an export starts from is read; that it is translated to ONNX takes seconds and reads nothing more.
    monkeypatch.setattr("fedl2g.deploy.export.write_programs", lambda *_: [])
    before = signal.signal(signal.SIGALRM, too_long)
    yield Scene(tmp_path, sound)
    signal.signal(signal.SIGALRM, before)


def names(sound: Path) -> list[str]:
    """One of each kind of file and folder in a run."""
    last = sorted((sound / "checkpoints").glob("round-*"))[-1]
    found = [path for path in sound.iterdir() if not path.name.startswith(".")]
    return sorted(str(path.relative_to(sound)) for path in (*found, *last.rglob("*"), last))


@pytest.mark.parametrize("made", [*ANYWHERE, *IN_TEXT], ids=lambda made: made.__name__)
def test_no_command_is_harmed_by_a_hostile_directory(
    made: Callable[[Path, Path], None], scene: Scene, sound: Path, record_property: Callable[[str, object], None]
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    chosen = [name for name in names(sound) if made in ANYWHERE or name.endswith((".json", ".toml"))]
    for number, name in enumerate(chosen):
        scene.try_all(name, made, number + [*ANYWHERE, *IN_TEXT].index(made))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < MEGABYTES
    assert scene.refused >= len(chosen)
    counts = {"built": len(chosen), "commands asked": scene.asked, "refused in a sentence": scene.refused}
    record_property("figures", {"hostile directories": {**counts, "harmed": 0}})
