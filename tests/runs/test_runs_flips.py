"""A flipped bit in a run directory is named in one sentence or changes nothing: asked of every command."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fedl2g
from commands import READING, Said, ask, drawn_as_text
from endings import StopAfter
from fedl2g.errors import FedL2GError
from fedl2g.experiment import Experiment
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.execute import Interrupted
from fedl2g.runs.models import TrainedModels
from fedl2g.runs.observers import StopOnInterrupt
from fedl2g.seals import digest
from forging import TINY

KINDS = ("finished", "interrupted")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A finished run and an interrupted one, each in a folder of its own."""
    root = tmp_path_factory.mktemp("sound")
    for kind in KINDS:
        (root / kind).mkdir()
    with pytest.MonkeyPatch.context() as patch:
        drawn_as_text(patch)
        fedl2g.run(Experiment(**TINY), root / "finished" / "run", quiet=True)
        with pytest.raises(Interrupted):
            fedl2g.run(
                Experiment(**TINY), root / "interrupted" / "run", [StopAfter(1, StopOnInterrupt.REASON)], quiet=True
            )
        yield root


def states(run: Path) -> str:
    """The networks that `fedl2g export` starts from, of every client after the best and the last round, by digest."""
    found = []
    for which in ("best", "last"):
        models = TrainedModels(RunDirectory.open(run), which)
        for client in range(TINY["clients"]):
            state = models.checkpoint.client(client) or {}
            found += [f"{name} {digest(tensor.numpy().tobytes())}" for name, tensor in sorted(state.items())]
        found.append(str(sorted(models.checkpoint.server().items())))
    return "\n".join(found)


def loaded(run: Path) -> str:
    """What a script reads: the result, its history and its clients."""
    result = fedl2g.load(run)
    numbers = {**result.to_dict(), "run": ""}
    return f"{numbers}\n{result.history.to_csv()}\n{result.clients.to_csv()}"


def resumed(run: Path, outcome: Callable[[Path], dict[str, Any]]) -> str:
    finished = (run / "result.json").exists()
    fedl2g.resume(run, quiet=True)
    found = outcome(run)
    kept = () if finished else ("files", "best", "partition")  # of a finished run they are not read
    return str({name: found[name] for name in ("history", "result", *kept)})


def in_python(call: Callable[[Path], str]) -> Callable[[Path], Said]:
    """A function that a script calls, as a command."""

    def asked(folder: Path) -> Said:
        try:
            return Said(0, call(folder / "run"), "")
        except FedL2GError as error:
            return Said(error.exit_code, "", f"fedl2g: {error}\n")

    return asked


def questions(kind: str, outcome: Callable[[Path], dict[str, Any]]) -> dict[str, Callable[[Path], Said]]:
    """All that is asked of a directory; the last one writes to it."""
    found: dict[str, Callable[[Path], Said]] = {
        name: lambda folder, command=command: ask(command("run"), folder)  # type: ignore[misc]
        for name, command in READING.items()
    }
    found["networks"] = in_python(states)
    if kind == "finished":
        found["load"] = in_python(loaded)
    found["resume"] = in_python(lambda run: resumed(run, outcome))
    return found


def flipped(run: Path, draw: random.Random) -> str:
    """Flip one bit of one file; large files are no likelier than small ones."""
    path = draw.choice(sorted(path for path in run.rglob("*") if path.is_file() and path.stat().st_size))
    content = bytearray(path.read_bytes())
    place = draw.randrange(len(content))
    content[place] ^= 1 << draw.randrange(8)
    path.write_bytes(content)
    return f"{path.relative_to(run)}, byte {place}"


def named(said: Said) -> bool:
    """Whether the damage is named: in one sentence that ends the command, or in a row or note of what it shows."""
    if said.code == 2:
        return said.err.startswith("fedl2g: ") and said.err.count("\n") == 1
    shown = "".join([said.out, said.err, *said.files.values()])
    return said.code == 0 and any(word in shown for word in ("damaged", "cannot be read", "digest"))


class Clean:
    """What is said of the sound directories; each is asked once."""

    def __init__(self, folder: Path, scratch: Path, outcome: Callable[[Path], dict[str, Any]]) -> None:
        self.folder, self.outcome = folder, outcome
        self.answers: dict[str, dict[str, Said]] = {}
        self.scratch = scratch
        for kind in KINDS:
            here = self.copy(kind)
            self.answers[kind] = {name: question(here) for name, question in questions(kind, outcome).items()}

    def copy(self, kind: str) -> Path:
        here = self.scratch / "flipped"
        shutil.rmtree(here, ignore_errors=True)
        shutil.copytree(self.folder / kind, here)
        return here

    def try_flips(self, count: int, draw: random.Random, often: int) -> dict[str, int]:
        """Flip bits, each in a new copy; pages are drawn for one flip in `often`. Counts what was answered."""
        counts = {"named": 0, "same": 0}
        for number in range(count):
            kind = KINDS[number % len(KINDS)]
            here = self.copy(kind)
            what = flipped(here / "run", draw)
            for name, question in questions(kind, self.outcome).items():
                if name in ("report", "watch") and draw.randrange(often):
                    continue
                said, clean = question(here), self.answers[kind][name]
                same = said.same(clean)
                assert same or named(said), f"{name} of the {kind} run, flipped {what}: {said}"
                counts["same" if same else "named"] += 1
        return counts


@pytest.fixture(scope="module")
def clean(folder: Path, tmp_path_factory: pytest.TempPathFactory, outcome: Callable[[Path], dict[str, Any]]) -> Clean:
    return Clean(folder, tmp_path_factory.mktemp("flips"), outcome)


def test_sound_directories_are_answered(clean: Clean) -> None:
    for answers in clean.answers.values():
        assert {name: said.code for name, said in answers.items()} == dict.fromkeys(answers, 0)
        assert not [name for name, said in answers.items() if "damaged" in said.out + said.err]


def test_flipped_bits_are_named_or_change_nothing(clean: Clean) -> None:
    counts = clean.try_flips(20, random.Random(20), often=20)
    assert counts["named"] > 15
    assert counts["same"] > 30


@pytest.mark.faults
@pytest.mark.parametrize("part", range(8))
def test_a_thousand_flipped_bits_are_named_or_change_nothing(
    part: int, clean: Clean, record_property: Callable[[str, object], None]
) -> None:
    counts = clean.try_flips(125, random.Random(1000 + part), often=10)
    said = {"named the damage": counts["named"], "as of the sound run": counts["same"], "silently different": 0}
    record_property("figures", {"flipped bits": {"flips": 125, "answers": sum(counts.values()), **said}})
    assert counts["named"] > 125
