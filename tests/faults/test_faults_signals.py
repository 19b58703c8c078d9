"""Ctrl-C, SIGTERM, SIGHUP and `kill -9` of every long command: in order where it can be, and nothing is left behind."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes through /proc"),
]

GONE_SECONDS = 10.0
TINY = (
    "--dataset", "digits", "--samples", "160", "--partition", "iid", "--clients", "3", "--models", "small_cnn",
    "--rounds", "100000", "--set", "evaluate_every=1", "--set", "execution.checkpoint_every=1000",
)  # fmt: skip
RUN = ("run", *TINY, "--out", "one")
COMMANDS: dict[str, tuple[tuple[str, ...], tuple[str, ...], int]] = {  # arguments, their runs, exit code
    "run": (RUN, ("one",), 130),
    "run on workers": ((*RUN, "--engine", "workers", "--workers", "2"), ("one",), 130),
    "run on flower": ((*RUN, "--engine", "flower", "--workers", "2"), ("one",), 130),
    "compare": (("compare", *TINY, "--methods", "local,fedproto", "--out", "both"), ("both/local-s0",), 130),
    "compare in two processes": (
        ("compare", *TINY, "--methods", "local,fedproto", "--jobs", "2", "--out", "both"),
        ("both/local-s0", "both/fedproto-s0"),
        130,
    ),
    "probe": (("probe", *TINY, "--set", "partition=dirichlet:0.1", "--methods", "fedproto"), (), 130),
    "watch": (("watch", ".", "--no-browser"), (), 0),
}


class Command:
    """The command in a session of its own, with a folder of its own for temporary files."""

    def __init__(self, folder: Path, arguments: tuple[str, ...]) -> None:
        self.folder, self.temporary = folder, folder / "temporary"
        self.temporary.mkdir()
        self.errors = folder / "errors.txt"
        with self.errors.open("w") as errors, (folder / "output.txt").open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fedl2g", *arguments],
                cwd=folder, stdout=output, stderr=errors, start_new_session=True,
                env={**os.environ, "TMPDIR": str(self.temporary)},
            )  # fmt: skip

    def wait_for(self, condition: Callable[[], bool], seconds: float = 300) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, self.errors.read_text()
            assert self.process.poll() is None, self.errors.read_text()
            time.sleep(0.05)

    def under_way(self, runs: tuple[str, ...]) -> bool:
        """Whether every run has trained some rounds, or the command has said something."""
        if not runs:
            return bool((self.folder / "output.txt").read_text() or "round" in self.errors.read_text())
        return all(rounds(self.folder / run) > 2 for run in runs)

    def processes(self) -> list[int]:
        """The processes of the session that are not zombies."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            if int(session) == self.process.pid and state != "Z":
                found.append(int(folder.name))
        return found

    def all_gone(self) -> None:
        end = time.monotonic() + GONE_SECONDS
        while left := [*self.processes(), *self.files()]:
            assert time.monotonic() < end, left
            time.sleep(0.05)

    def files(self) -> list[Path]:
        """What is left in the temporary folder, without the cache that torch makes when it is imported."""
        return [path for path in self.temporary.iterdir() if not path.name.startswith("torchinductor")]


def rounds(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    return len(metrics.read_text().splitlines()) if metrics.is_file() else 0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    started: list[Command] = []

    def begin(arguments: tuple[str, ...]) -> Command:
        started.append(Command(tmp_path, arguments))
        return started[-1]

    yield begin
    for command in started:
        for process in command.processes():
            os.kill(process, signal.SIGKILL)
        command.process.wait()


def ask(process: subprocess.Popen[Any], number: signal.Signals) -> None:
    """As a terminal does for Ctrl-C and when it closes, and as `timeout` does: the process, and its whole group."""
    if number == signal.SIGTERM:
        os.kill(process.pid, number)
    os.killpg(process.pid, number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_signal_ends_every_command_in_order(
    name: str, number: signal.Signals, start: Callable[..., Command], record_property: Callable[[str, object], None]
) -> None:
    arguments, runs, code = COMMANDS[name]
    command = start(arguments)
    command.wait_for(lambda: command.under_way(runs))
    ask(command.process, number)
    assert command.process.wait(120) == code
    command.all_gone()
    said = command.errors.read_text()
    assert "Traceback" not in said
    assert "press Ctrl-C again to stop at once" in said
    if code:  # a probe keeps nothing that could be continued
        assert ("continue" in said.splitlines()[-1]) if runs else (said.splitlines()[-1] == "fedl2g: interrupted")
    for run in runs:  # a checkpoint of the round in which it ended, though one was due after a thousand
        last = json.loads((command.folder / run / "metrics.jsonl").read_text().splitlines()[-1])["round"]
        assert (command.folder / run / "checkpoints" / f"round-{last:06d}").is_dir()
    record_property("figures", {"signals": {"orderly ends": 1}})


@pytest.mark.parametrize("name", COMMANDS)
def test_kill_9_leaves_nothing_behind(
    name: str, start: Callable[..., Command], record_property: Callable[[str, object], None]
) -> None:
    arguments, runs, _ = COMMANDS[name]
    command = start(arguments)
    command.wait_for(lambda: command.under_way(runs))
    command.process.kill()
    command.process.wait()
    command.all_gone()
    record_property("figures", {"signals": {"ends by kill -9 without a trace": 1}})


def test_workers_that_are_starting_end_too(start: Callable[..., Command]) -> None:
    command = start((*RUN, "--engine", "workers", "--workers", "2"))
    command.wait_for(lambda: len(command.processes()) == 3)
    command.process.kill()
    command.process.wait()
    command.all_gone()


def test_a_terminal_that_closes_does_not_keep_the_checkpoint_from_being_written(tmp_path: Path) -> None:
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        os.execv(sys.executable, [sys.executable, "-m", "fedl2g", *RUN])
    end = time.monotonic() + 300
    while rounds(tmp_path / "one") < 3:
        assert time.monotonic() < end
        os.set_blocking(terminal, False)
        try:
            os.read(terminal, 65536)
        except BlockingIOError:
            time.sleep(0.05)
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    last = json.loads((tmp_path / "one/metrics.jsonl").read_text().splitlines()[-1])["round"]
    assert (tmp_path / "one/checkpoints" / f"round-{last:06d}").is_dir()


def test_under_nohup_a_run_goes_on(start: Callable[..., Command], monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # inherited, as from nohup
    try:
        command = start(RUN)
    finally:
        signal.signal(signal.SIGHUP, before)
    command.wait_for(lambda: command.under_way(("one",)))
    ask(command.process, signal.SIGHUP)
    seen = rounds(command.folder / "one")
    command.wait_for(lambda: rounds(command.folder / "one") > seen + 2)


def test_a_second_ctrl_c_ends_at_once_and_leaves_nothing(start: Callable[..., Command]) -> None:
    arguments, runs, _ = COMMANDS["compare in two processes"]
    command = start((*arguments, "--set", "local_epochs=5000"))
    command.wait_for(lambda: all(rounds(command.folder / run) == 1 for run in runs))
    os.kill(command.process.pid, signal.SIGINT)
    command.wait_for(lambda: "press Ctrl-C again" in command.errors.read_text())
    os.kill(command.process.pid, signal.SIGINT)
    assert command.process.wait(GONE_SECONDS) == 130
    command.all_gone()
