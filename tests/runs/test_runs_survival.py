"""Runs that survive: killed at any moment, damaged, locked or out of disk, a run goes on to the same numbers."""

from __future__ import annotations

import errno
import json
import logging
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

import fedl2g
from endings import RaiseAfter
from fedl2g.engines.base import WorkerLost
from fedl2g.engines.inline import InlineEngine
from fedl2g.engines.workers import WorkersEngine
from fedl2g.errors import FedL2GError, RunError
from fedl2g.experiment import Experiment
from fedl2g.federation import Federation, Observer
from fedl2g.learning.optimizer import ClippedSGD
from fedl2g.methods.base import Reply
from fedl2g.references import load_plugin
from fedl2g.round.record import RoundRecord
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.execute import Interrupted
from fedl2g.runs.observers import StopOnInterrupt
from forging import reseal

Tiny = Callable[..., Experiment]
Outcome = Callable[[Path], dict[str, Any]]

# Processes forked from a server that has torch loaded start at once, and have nothing else of this one.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "fedl2g.runs.runner",
        "fedl2g.methods.fedl2g",
        "fedl2g.models.build",
        "fedl2g.models.small",
        "fedl2g.models.architectures",
        "fedl2g.engines.inline",
        "fedl2g.engines.workers",
    ]
)


@pytest.fixture(scope="module")
def uninterrupted(tiny: Tiny, outcome: Outcome, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("uninterrupted") / "run"
    fedl2g.run(tiny(), path)
    return outcome(path)


class Crash(Exception):
    """An end that no code of the package foresees."""


@pytest.fixture(scope="module")
def crashed(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ended in the middle, after round 3 of 4, with the checkpoints of rounds 2 and 3."""
    path = tmp_path_factory.mktemp("crashed") / "run"
    with pytest.raises(Crash):
        fedl2g.run(tiny(), path, [RaiseAfter(3, Crash)])
    assert sorted(p.name for p in (path / "checkpoints").iterdir()) == ["round-000002", "round-000003"]
    return path


@pytest.fixture
def half_done(crashed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(crashed, tmp_path / "run"))


# ---- kill -9 of the main process


def start(target: Callable[..., None], *args: Any) -> Any:
    process = FORKS.Process(target=target, args=args)
    process.start()
    return process


TOUCHING = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree")


def run_until_event(toml: str, out: str, fatal: int) -> None:
    """In a process of its own: be killed at the n-th time that a file of the run is touched."""
    left = fatal

    def watch(event: str, args: tuple[Any, ...]) -> None:
        nonlocal left
        if event in TOUCHING and out in str(args[:2]):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    real = safetensors.torch.save_file

    def save(tensors: Any, path: Path) -> None:
        nonlocal left
        left -= 1
        real(tensors, path)
        if left == 0:  # half a file
            os.truncate(path, path.stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    safetensors.torch.save_file = save
    sys.addaudithook(watch)
    fedl2g.run(Experiment.from_toml(toml), out)


@pytest.mark.slow
def test_killed_at_every_kind_of_file_operation(tiny: Tiny, outcome: Outcome, tmp_path: Path) -> None:
    experiment = tiny(models="small_cnn", clients=3, partition="iid", samples=120)
    fedl2g.run(experiment, tmp_path / "whole")
    out, killed, fatal = tmp_path / "run", 0, 1
    rounds = []
    while True:
        process = start(run_until_event, experiment.to_toml(), str(out), fatal)
        process.join(300)
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        killed += 1
        fatal += 3
        rounds.append(len(RunDirectory(out).history()) if (out / "run.json").exists() else -1)
    assert killed >= 10
    assert rounds[0] == -1  # already while the run directory was made
    assert len({number for number in rounds if number > 0}) >= 3  # in several rounds
    assert outcome(out) == outcome(tmp_path / "whole")
    assert not list(out.glob("**/.*"))


def run_until_step(toml: str, out: str, fatal: int) -> None:
    """In a process of its own: be killed at the n-th training step, with no file open."""
    left, step = fatal, ClippedSGD.step

    def counted(optimizer: ClippedSGD) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        step(optimizer)

    ClippedSGD.step = counted  # type: ignore[method-assign]
    fedl2g.run(Experiment.from_toml(toml), out)


@pytest.mark.slow
def test_killed_in_the_middle_of_training(
    tiny: Tiny, outcome: Outcome, uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    """Rounds 2 to 4 take six steps each; the last number is the last step of all."""
    out, reached = tmp_path / "run", []
    for fatal in (3, 8, 2, 12):
        process = start(run_until_step, tiny().to_toml(), str(out), fatal)
        process.join(300)
        assert process.exitcode == -signal.SIGKILL
        reached.append(RunDirectory(out).history()[-1].round)
    assert reached == [1, 2, 2, 3]
    assert fedl2g.resume(out).status == "finished"
    assert outcome(out) == uninterrupted


def wait_for(condition: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


class Slow(Observer):
    def on_round(self, federation: Federation, record: RoundRecord) -> None:
        time.sleep(0.3)


def run_on_workers(toml: str, out: str, pids: str) -> None:
    """In a process of its own: note the worker processes, and go slowly."""

    class Note(Slow):
        def on_start(self, federation: Federation) -> None:
            Path(pids).write_text(" ".join(map(str, federation.engine.pids)))

    fedl2g.run(Experiment.from_toml(toml), out, [Note()])


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes through /proc")
def test_killed_with_workers_leaves_none_behind_and_goes_on_inline(
    tiny: Tiny, outcome: Outcome, uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    out, pids = tmp_path / "run", tmp_path / "pids"
    toml = tiny(execution__engine="workers").to_toml()
    process = start(run_on_workers, toml, str(out), str(pids))
    wait_for(lambda: (out / "metrics.jsonl").exists() and len(RunDirectory(out).history()) >= 2)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    workers = [int(pid) for pid in pids.read_text().split()]
    assert len(workers) == 2
    wait_for(lambda: not any(is_running(pid) for pid in workers))
    assert RunDirectory(out).result() is None
    fedl2g.resume(out, execution={"engine": "inline"})
    assert outcome(out) == uninterrupted


# ---- workers that die


@pytest.mark.slow
def test_a_killed_worker_is_noticed_and_the_run_goes_on(
    tiny: Tiny,
    outcome: Outcome,
    uninterrupted: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    real, killed = WorkersEngine.train, []

    def kill_one(engine: WorkersEngine, round: int, *args: Any) -> Iterator[Reply]:
        for reply in real(engine, round, *args):
            if round == 3 and not killed:  # one client has answered, the others have not
                os.kill(engine.pids[1 - engine.home[reply.client]], signal.SIGKILL)
                killed.append(time.monotonic())
            yield reply

    monkeypatch.setattr(WorkersEngine, "train", kill_one)
    with caplog.at_level(logging.WARNING):
        fedl2g.run(tiny(execution={"engine": "workers", "workers": 2, "checkpoint_every": 2}), tmp_path / "run")
    assert killed
    assert "died: signal 9; its clients were restored; the run continues from round 2" in caplog.text
    assert outcome(tmp_path / "run") == uninterrupted


LOSSES = {
    "while it trains": ("train", 2),
    "while it evaluates before the first round": ("evaluate", 1),
    "while it evaluates": ("evaluate", 3),
    "while the first checkpoint is written": ("save", 1),
    "while a checkpoint is written": ("save", 3),
    "before anything is asked": ("restore", 1),
}


@pytest.mark.parametrize("again", [False, True], ids=["once", "and while it is restored"])
@pytest.mark.parametrize("when", LOSSES)
def test_a_worker_may_be_lost_at_any_moment(
    when: str,
    again: bool,
    tiny: Tiny,
    outcome: Outcome,
    uninterrupted: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An engine in this process that reports a loss: what the run does then is the same for every engine."""
    method, call = LOSSES[when]
    calls = dict.fromkeys(("train", "evaluate", "save", "restore", "revive"), 0)
    lost: list[str] = []

    def losing(name: str) -> Callable[..., Any]:
        real = getattr(InlineEngine, name)

        def wrapped(engine: InlineEngine, *args: Any) -> Any:
            calls[name] += 1
            if name == method and calls[name] == call:
                lost.append(name)
                raise WorkerLost("worker 0 died")
            if again and name == "restore" and len(lost) == 1:
                lost.append(name)
                engine.host.restore(None)  # whatever its state is then
                raise WorkerLost("worker 1 died")
            return real(engine, *args)

        return wrapped

    for name in calls:
        monkeypatch.setattr(InlineEngine, name, losing(name))
    fedl2g.run(tiny(execution__checkpoint_every=100 if method == "save" and call == 1 else 1), tmp_path / "run")
    assert calls["revive"] == len(lost) == 1 + again
    assert outcome(tmp_path / "run") == uninterrupted


def test_a_second_loss_before_any_checkpoint_starts_the_run_over(
    tiny: Tiny, outcome: Outcome, uninterrupted: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first checkpoint was never written: server and clients must go back to the start together."""
    save, train, lost = InlineEngine.save, InlineEngine.train, []

    def lose_first_save(engine: InlineEngine, directory: Path) -> None:
        if not lost:
            lost.append("save")
            raise WorkerLost("worker 0 died")
        save(engine, directory)

    def lose_round_three(engine: InlineEngine, round: int, *args: Any) -> Any:
        if round == 3 and len(lost) == 1:
            lost.append("train")
            raise WorkerLost("worker 0 died")
        return train(engine, round, *args)

    monkeypatch.setattr(InlineEngine, "save", lose_first_save)
    monkeypatch.setattr(InlineEngine, "train", lose_round_three)
    fedl2g.run(tiny(execution__checkpoint_every=100), tmp_path / "run")
    assert lost == ["save", "train"]
    assert outcome(tmp_path / "run") == uninterrupted


def test_workers_that_die_again_and_again_end_the_run(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*args: Any) -> Any:
        raise WorkerLost("worker 0 died")

    monkeypatch.setattr(InlineEngine, "evaluate", lose)
    with pytest.raises(RunError, match=r"workers died 20 times.*fedl2g resume"):
        fedl2g.run(tiny(models="small_cnn"), tmp_path / "run")


# ---- damaged, foreign and locked


def flip_byte(path: Path, where: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(where * len(content))] ^= 0x01
    path.write_bytes(content)


def change_history(path: Path) -> None:
    text = path.read_text()
    assert '"pooled": 0.' in text
    path.write_text(text.replace('"pooled": 0.', '"pooled": 0.9', 1))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a bit of the guide": lambda p: flip_byte(p / "server.safetensors", 0.9),
    "a bit of a header": lambda p: flip_byte(p / "server.safetensors", 0.001),
    "a bit of a client": lambda p: flip_byte(next(p.glob("client-*")), 0.5),
    "a bit of the state": lambda p: flip_byte(p / "state.json", 0.5),
    "a number of the history": lambda p: change_history(p / "state.json"),
    "half a client": lambda p: os.truncate(next(p.glob("client-*")), 100),
    "half a state": lambda p: os.truncate(p / "state.json", 200),
    "an empty state": lambda p: os.truncate(p / "state.json", 0),
    "a state of another kind": lambda p: (p / "state.json").write_text("[1, 2]"),
    "binary as state": lambda p: (p / "state.json").write_bytes(b"\xff\x00\xfe"),
    "no state": lambda p: (p / "state.json").unlink(),
    "no guide": lambda p: (p / "server.safetensors").unlink(),
    "no client": lambda p: next(p.glob("client-*")).unlink(),
    "a client too many": lambda p: shutil.copy(next(p.glob("client-*")), p / "client-000099.safetensors"),
    "nothing at all": lambda p: (shutil.rmtree(p), p.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    damage: str, half_done: Path, outcome: Outcome, uninterrupted: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    DAMAGE[damage](half_done / "checkpoints" / "round-000003")
    with caplog.at_level(logging.WARNING):
        fedl2g.resume(half_done)
    assert "round-000003: the checkpoint is damaged" in caplog.text
    assert outcome(half_done) == uninterrupted


def contents(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file() and p.name != "lock"}


def test_without_a_sound_checkpoint_nothing_is_done(half_done: Path) -> None:
    for path in (half_done / "checkpoints").iterdir():
        flip_byte(path / "state.json", 0.5)
    before = contents(half_done)
    with pytest.raises(RunError, match="every checkpoint is damaged; nothing was changed") as caught:
        fedl2g.resume(half_done)
    assert "\n" not in str(caught.value)
    assert contents(half_done) == before


def test_a_checkpoint_of_another_experiment_is_refused(tiny: Tiny, half_done: Path, tmp_path: Path) -> None:
    fedl2g.run(tiny(seed=5), tmp_path / "other")
    shutil.copytree(tmp_path / "other/checkpoints/round-000004", half_done / "checkpoints/round-000004")
    before = contents(half_done)
    with pytest.raises(RunError, match="belongs to another experiment"):
        fedl2g.resume(half_done)
    assert contents(half_done) == before


def hold(path: str) -> None:
    """In a process of its own: use a run directory until killed."""
    with RunDirectory(Path(path)).lock():
        (Path(path) / "held").touch()
        time.sleep(600)


def test_a_run_in_use_is_refused_and_free_again_when_its_process_dies(
    half_done: Path, outcome: Outcome, uninterrupted: dict[str, Any], tiny: Tiny
) -> None:
    process = start(hold, str(half_done))
    wait_for((half_done / "held").exists)
    for attempt in (lambda: fedl2g.resume(half_done), lambda: fedl2g.run(tiny(), half_done)):
        with pytest.raises(RunError, match="in use by another process"):
            attempt()
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    fedl2g.resume(half_done)
    assert outcome(half_done) == uninterrupted


@pytest.mark.parametrize("cut", [1, 2, 40, 300])
def test_half_a_line_of_metrics_does_no_harm(
    cut: int, half_done: Path, outcome: Outcome, uninterrupted: dict[str, Any]
) -> None:
    metrics = half_done / "metrics.jsonl"
    os.truncate(metrics, metrics.stat().st_size - cut)
    assert len(RunDirectory(half_done).history()) == (4 if cut == 1 else 3)
    fedl2g.resume(half_done)
    assert outcome(half_done) == uninterrupted


@pytest.mark.parametrize("content", [None, b"", b"\xff\x00 no json\n", b'{"round": 1}\n[]\n7\nnull\n'])
def test_lost_metrics_come_back_from_the_checkpoint(
    content: bytes | None, half_done: Path, outcome: Outcome, uninterrupted: dict[str, Any]
) -> None:
    metrics = half_done / "metrics.jsonl"
    metrics.unlink() if content is None else metrics.write_bytes(content)
    fedl2g.resume(half_done)
    assert outcome(half_done) == uninterrupted


# ---- a full disk


def test_a_full_disk_is_one_sentence_and_costs_nothing(
    tiny: Tiny, outcome: Outcome, uninterrupted: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, out = safetensors.torch.save_file, tmp_path / "run"

    def save(tensors: Any, path: Path) -> None:
        if (out / "checkpoints/round-000002").exists():
            Path(path).write_bytes(b"the first half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(tensors, path)

    with monkeypatch.context() as patch:
        patch.setattr(safetensors.torch, "save_file", save)
        with pytest.raises(
            RunError, match=r"(round-000003|best): .*\(No space left on device\); .* `fedl2g resume .*run`"
        ) as caught:
            fedl2g.run(tiny(), out)
    assert "\n" not in str(caught.value)
    assert sorted(p.name for p in (out / "checkpoints").iterdir()) == ["round-000001", "round-000002"]
    fedl2g.resume(out)
    assert outcome(out) == uninterrupted


def run_with_small_files(toml: str, out: str, limit: int, message: str) -> None:
    """In a process of its own: no file may grow beyond a limit, as on a disk with a quota."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        fedl2g.run(Experiment.from_toml(toml), out)
    except FedL2GError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        Path(message).write_text(f"{type(error).__name__}: {error}")


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(15_000, "best: the models of the best round cannot be written"), (1_000, "cannot be created|cannot be written")],
)
def test_a_disk_that_refuses_to_grow_a_file(
    limit: int, expected: str, tiny: Tiny, outcome: Outcome, uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    out, message = tmp_path / "run", tmp_path / "message"
    process = start(run_with_small_files, tiny().to_toml(), str(out), limit, str(message))
    process.join(300)
    assert process.exitcode == 0
    assert message.read_text().startswith(f"RunError: {out}")
    assert any(part in message.read_text() for part in expected.split("|"))
    assert "File too large" in message.read_text()
    fedl2g.run(tiny(), out)
    assert outcome(out) == uninterrupted


FULL_DISK = """
import errno, sys
import safetensors.torch

def full(tensors, path):
    raise OSError(errno.ENOSPC, "No space left on device")

if any("fedl2g.engines.worker" in part for part in sys.orig_argv):
    safetensors.torch.save_file = full
"""


def test_a_full_disk_met_by_a_worker_is_the_same_sentence(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = tmp_path / "full_disk.py"
    plugin.write_text(FULL_DISK)
    monkeypatch.setattr("fedl2g.references._plugins", [])
    load_plugin(str(plugin))
    experiment = tiny(execution__engine="workers", execution__workers=1, method="local")
    with pytest.raises(
        RunError,
        match=r"(the checkpoint|the models of the best round) cannot be written \(No space left on device\); earlier",
    ):
        fedl2g.run(experiment, tmp_path / "run")
    assert [p.name for p in (tmp_path / "run/checkpoints").iterdir()] == ["round-000000"]


# ---- Ctrl-C


def run_slowly(toml: str, out: str, message: str) -> None:
    """In a process of its own: go slowly, and write down how it ended."""
    try:
        fedl2g.run(Experiment.from_toml(toml), out, [Slow()])
    except Interrupted as error:
        Path(message).write_text(f"{error.exit_code} {error}")


def test_ctrl_c_finishes_the_round_and_says_how_to_go_on(
    tiny: Tiny, outcome: Outcome, uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    out, message = tmp_path / "run", tmp_path / "message"
    toml = tiny(execution__checkpoint_every=100).to_toml()
    process = start(run_slowly, toml, str(out), str(message))
    wait_for(lambda: (out / "metrics.jsonl").exists() and len(RunDirectory(out).history()) >= 2)
    os.kill(process.pid, signal.SIGINT)
    process.join(300)
    assert process.exitcode == 0
    history = RunDirectory(out).history()
    assert len(history) in (2, 3)  # the round it was in, no more
    last = history[-1].round
    expected = f"130 interrupted after round {last}; a checkpoint was written; continue with `fedl2g resume {out}`"
    assert message.read_text() == expected
    assert (out / f"checkpoints/round-{last:06d}").is_dir()
    assert RunDirectory(out).result() is None
    fedl2g.resume(out)
    assert outcome(out) == uninterrupted


class PressCtrlC(Observer):
    def __init__(self, presses: int, round: int = 1) -> None:
        self.presses, self.round = presses, round

    def on_round(self, federation: Federation, record: RoundRecord) -> None:
        if record.round == self.round:
            for _ in range(self.presses):
                signal.raise_signal(signal.SIGINT)


@pytest.fixture
def _ctrl_c_as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.usefixtures("_ctrl_c_as_before")
def test_a_second_ctrl_c_ends_at_once(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fedl2g.run(tiny(models="small_cnn"), tmp_path / "run", [PressCtrlC(2)])
    with pytest.raises(Interrupted):
        fedl2g.run(tiny(models="small_cnn"), tmp_path / "other", [PressCtrlC(1)])
    assert len(RunDirectory(tmp_path / "other").history()) == 2


@pytest.mark.usefixtures("_ctrl_c_as_before")
def test_ctrl_c_in_the_last_round_has_nothing_to_interrupt(tiny: Tiny, tmp_path: Path) -> None:
    experiment = tiny(models="small_cnn", rounds=2)
    result = fedl2g.run(experiment, tmp_path / "run", [PressCtrlC(1, round=2)])
    assert (result.status, result.rounds) == ("finished", 2)
    assert fedl2g.load(tmp_path / "run") == result


@pytest.mark.usefixtures("_ctrl_c_as_before")
def test_ctrl_c_stands_even_if_a_worker_is_lost_after_it(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, lost = InlineEngine.save, []

    def save(engine: InlineEngine, directory: Path) -> None:
        if (tmp_path / "run/checkpoints/round-000000").exists() and not lost:
            lost.append(True)
            signal.raise_signal(signal.SIGINT)
            raise WorkerLost("worker 0 died")
        real(engine, directory)

    monkeypatch.setattr(InlineEngine, "save", save)
    with pytest.raises(Interrupted, match="interrupted after round 0"):
        fedl2g.run(tiny(models="small_cnn"), tmp_path / "run")
    assert StopOnInterrupt.REASON == "interrupted"


# ---- the same directory again


def test_a_finished_run_returns_its_result_and_is_left_alone(tiny: Tiny, tmp_path: Path) -> None:
    experiment = tiny(models="small_cnn", rounds=2)
    first = fedl2g.run(experiment, tmp_path / "run")
    before = contents(tmp_path / "run")
    assert fedl2g.run(experiment, tmp_path / "run") == first
    assert fedl2g.run(tiny(models="small_cnn", rounds=2, execution__engine="workers"), tmp_path / "run") == first
    assert fedl2g.resume(tmp_path / "run") == first
    assert contents(tmp_path / "run") == before
    moved = (tmp_path / "run").rename(tmp_path / "elsewhere")
    assert fedl2g.resume(moved).run == str(moved)


def test_run_goes_on_where_a_run_of_the_same_experiment_ended(
    tiny: Tiny, half_done: Path, outcome: Outcome, uninterrupted: dict[str, Any]
) -> None:
    fedl2g.run(tiny(), half_done)
    assert outcome(half_done) == uninterrupted
    rounds = [json.loads(line)["round"] for line in (half_done / "metrics.jsonl").read_text().splitlines()]
    assert rounds == [0, 1, 2, 3, 4]  # from the checkpoint, not from the start


def test_another_experiment_in_the_same_directory_is_refused(tiny: Tiny, half_done: Path) -> None:
    before = contents(half_done)
    with pytest.raises(RunError, match=r"holds another experiment \(fedl2g-f, seed 0\); choose another --out"):
        fedl2g.run(tiny(seed=1), half_done)
    assert contents(half_done) == before


def test_other_data_under_the_same_name_is_refused(half_done: Path) -> None:
    reseal(half_done, dataset_fingerprint="another")
    with pytest.raises(RunError, match=r"is not the one .* was started with"):
        fedl2g.resume(half_done)


def test_a_place_that_is_no_run_directory_is_refused_or_used_if_empty(tiny: Tiny, tmp_path: Path) -> None:
    experiment = tiny(models="small_cnn", method="local", rounds=1)
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    for name in ("file", "full"):
        with pytest.raises(RunError, match="exists and is not a run directory"):
            fedl2g.run(experiment, tmp_path / name)
    for name in ("file", "full", "missing"):
        with pytest.raises(RunError, match="not a run directory"):
            fedl2g.resume(tmp_path / name)
    (tmp_path / "empty").mkdir()
    assert fedl2g.run(experiment, tmp_path / "empty").rounds == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "file", "full"]


def test_a_run_of_another_version_is_refused(half_done: Path) -> None:
    (half_done / "run.json").write_text('{"format": 99}')
    with pytest.raises(RunError, match="written by another version"):
        fedl2g.resume(half_done)
    (half_done / "run.json").write_text("{")
    with pytest.raises(RunError, match="cannot be read"):
        fedl2g.resume(half_done)
