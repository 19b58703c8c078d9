"""Ctrl-C, pressed in real processes: acknowledged at once, orderly the first time, immediate the second."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from fedl2g import cli

ENDLESS = (
    "--dataset", "digits", "--samples", "160", "--partition", "iid", "--clients", "3", "--models", "small_cnn",
    "--rounds", "100000", "--set", "evaluate_every=1",
)  # fmt: skip
ACKNOWLEDGED = 0.2  # seconds
AFTER_THE_ROUND = re.compile(
    r"fedl2g: stopping after this round,( in about [\w.]+ \w+,)? with a checkpoint; press Ctrl-C again to stop "
    r"at once\n"
)


class Pressed:
    """The command in a process group of its own, as in a terminal: Ctrl-C reaches all its processes."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fedl2g", *arguments],
            cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.err = ""

    def wait_for(self, condition: Callable[[], bool], seconds: float = 180) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end
            assert self.process.poll() is None, self.process.communicate()[1]
            time.sleep(0.02)

    def ctrl_c(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def line(self) -> tuple[str, float]:
        """The next line of ours on stderr, and how long it took."""
        assert self.process.stderr is not None
        start = time.monotonic()
        text = "-"
        while text and not text.startswith("fedl2g: "):
            text = self.process.stderr.readline()
            self.err += text
        return text, time.monotonic() - start

    def acknowledgement(self) -> str:
        """Press Ctrl-C; what is said to it, which is soon."""
        self.ctrl_c()
        said, seconds = self.line()
        assert seconds < ACKNOWLEDGED
        return said

    def stops_at_once(self) -> None:
        """Press Ctrl-C for the second time: every process ends."""
        assert self.acknowledgement() == "fedl2g: stopped at once\n"
        code, _ = self.end(5)
        assert code == 130
        ended = time.monotonic()
        while self.children():  # they notice by themselves that their parent is gone
            assert time.monotonic() - ended < 10
            time.sleep(0.05)

    def end(self, seconds: float = 90) -> tuple[int, str]:
        _, rest = self.process.communicate(timeout=seconds)
        self.err += rest
        assert "Traceback" not in self.err
        assert "Exception ignored" not in self.err
        return self.process.returncode, self.err

    def children(self) -> list[int]:
        """The processes of the group that are not zombies."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    state, _, group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
                except OSError:
                    continue
                if int(group) == self.process.pid and state != "Z":
                    found.append(int(folder.name))
        return found


@pytest.fixture
def press(tmp_path: Path) -> Iterator[Callable[..., Pressed]]:
    started: list[Pressed] = []

    def start(*arguments: str) -> Pressed:
        started.append(Pressed(tmp_path, *arguments))
        return started[-1]

    # Where the tests themselves were started in the background, Ctrl-C is ignored, and would be by the command.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield start
    signal.signal(signal.SIGINT, before)
    for command in started:
        if command.children():
            os.killpg(command.process.pid, signal.SIGKILL)
        command.process.wait()


def rounds(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    return len(metrics.read_text().splitlines()) if metrics.is_file() else 0


@pytest.mark.parametrize("module", ["click", "torch"])
def test_ctrl_c_while_a_library_is_imported_ends_the_command(
    module: str, press: Callable[..., Pressed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries take any exception in an import of theirs for something else, and go on or end in a traceback."""
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / f"{module}.py").write_text(
        f"import pathlib, time\npathlib.Path({str(tmp_path / 'begun')!r}).touch()\n"
        "try:\n    time.sleep(60)\nexcept BaseException:\n    time.sleep(60)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "slow"), os.environ.get("PYTHONPATH", "")]))
    command = press("models")
    command.wait_for((tmp_path / "begun").exists)
    if module == "torch":
        assert command.acknowledgement() == "fedl2g: stopping; press Ctrl-C again to stop at once\n"
        assert command.line()[0] == "fedl2g: interrupted\n"
    else:  # nothing of ours runs yet
        command.ctrl_c()
    code, _ = command.end(5)
    assert code == (130 if module == "torch" else -signal.SIGINT)


def test_the_first_ends_after_the_round_with_a_checkpoint(press: Callable[..., Pressed], tmp_path: Path) -> None:
    command = press("run", *ENDLESS, "--out", "a run", "--quiet")
    command.wait_for(lambda: rounds(tmp_path / "a run") > 2)
    assert AFTER_THE_ROUND.fullmatch(command.acknowledgement())
    code, err = command.end()
    assert code == 130
    assert "a checkpoint was written; continue with `fedl2g resume 'a run'`" in err.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["workers", pytest.param("flower", marks=pytest.mark.deployment)])
def test_the_second_ends_all_processes_in_the_middle_of_a_round(
    engine: str, press: Callable[..., Pressed], tmp_path: Path
) -> None:
    long_round = ("--set", "local_epochs=5000", "--engine", engine, "--workers", "2")
    command = press("run", *ENDLESS, *long_round, "--out", "run", "--quiet")
    command.wait_for(lambda: rounds(tmp_path / "run") == 1)  # the evaluation before the first round
    time.sleep(0.5)
    assert AFTER_THE_ROUND.fullmatch(command.acknowledgement())
    command.stops_at_once()


def test_ctrl_c_while_workers_start_leaves_no_traceback(press: Callable[..., Pressed], tmp_path: Path) -> None:
    command = press("run", *ENDLESS, "--out", "run", "--engine", "workers", "--workers", "2")
    command.wait_for(lambda: len(command.children()) == 3)
    command.ctrl_c()
    code, err = command.end()
    assert code == 130
    assert err.splitlines()[0] == "fedl2g: stopping; press Ctrl-C again to stop at once"
    assert "the same command goes on from the last checkpoint" in err.splitlines()[-1]
    assert command.children() == []


@pytest.mark.parametrize(
    ("arguments", "continued"),
    [("run", True), ("resume r", True), ("paper run data", True), ("report run", False), ("deploy run", False)],
)
def test_only_commands_that_train_say_that_they_go_on(
    arguments: str, continued: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(**_: object) -> None:
        raise click.Abort from KeyboardInterrupt()

    monkeypatch.setattr(cli, "app", interrupted)
    monkeypatch.setattr(sys, "argv", ["fedl2g", *arguments.split()])
    with pytest.raises(SystemExit) as ended:
        cli._run_command()
    assert ended.value.code == 130
    assert ("the same command goes on" in capsys.readouterr().err) is continued


CHILD = "from fedl2g.interrupts import end_with_parent as e; e(); print(1, flush=True); import time; time.sleep(100)"
PARENT = f"""
import os, signal, subprocess, sys
from fedl2g.interrupts import start_process, two_step_interrupts
with two_step_interrupts():
    child = start_process([sys.executable, "-c", {CHILD!r}], first=None, stdout=subprocess.PIPE)
    child.stdout.readline()
    print(child.pid, flush=True)
    if {{pressed}}:
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()
"""


@pytest.mark.parametrize("pressed", [False, True])
def test_a_process_that_nobody_ended_ends_without_a_word(pressed: bool) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PARENT.format(pressed=pressed)], capture_output=True, text=True, timeout=60
    )
    said = ended.stderr.splitlines()
    assert said[:1] == (["fedl2g: stopping; press Ctrl-C again to stop at once"] if pressed else [])
    assert not any("stopped at once" in line for line in said)
    if pressed:  # it was waited for
        assert not Path("/proc", ended.stdout.strip()).exists()


@pytest.mark.slow
def test_a_comparison_in_subprocesses_stops_in_order_and_says_how_to_go_on(
    press: Callable[..., Pressed], tmp_path: Path
) -> None:
    arguments = ["compare", *ENDLESS, "--methods", "local,fedproto", "--jobs", "2", "--out", "both"]
    command = press(*arguments)
    runs = [tmp_path / "both" / "local-s0", tmp_path / "both" / "fedproto-s0"]
    command.wait_for(lambda: all(rounds(run) > 1 for run in runs))
    assert command.acknowledgement().startswith("fedl2g: stopping after the current round of each run")
    code, err = command.end()
    assert code == 130
    assert err.splitlines()[-1].endswith(f"continue the comparison with `fedl2g {' '.join(arguments)}`")
    assert command.children() == []


@pytest.mark.slow
def test_the_second_stops_a_comparison_in_subprocesses_at_once(press: Callable[..., Pressed], tmp_path: Path) -> None:
    long_round = ("--set", "local_epochs=5000", "--methods", "local,fedproto", "--jobs", "2", "--out", "both")
    command = press("compare", *ENDLESS, *long_round)
    runs = [tmp_path / "both" / "local-s0", tmp_path / "both" / "fedproto-s0"]
    command.wait_for(lambda: all(rounds(run) == 1 for run in runs))
    assert command.acknowledgement().startswith("fedl2g: stopping after the current round of each run")
    command.stops_at_once()
