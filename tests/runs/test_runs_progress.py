"""The progress of several runs, by a clock that moves only when a test says so."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from rich.console import Console

from fedl2g.experiment import Experiment
from fedl2g.round.record import Accuracy, RoundRecord
from fedl2g.runs.batch_progress import BatchProgress
from fedl2g.runs.console import StatusLine
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.observers import StopOnInterrupt
from fedl2g.runs.progress import progress_bar
from forging import reseal


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(time, "monotonic", found)
    return found


def experiment(method: str, rounds: int = 10) -> Experiment:
    return Experiment(method=method, rounds=rounds, clients=2, models="small_cnn")


def console(*, terminal: bool, width: int = 80) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=width)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


LOCAL, GUIDED, LATER = Path("local-s0"), Path("feddistill-s0"), Path("local-s1")


def batch(jobs: int = 1, *, terminal: bool = False) -> BatchProgress:
    runs = {LOCAL: experiment("local"), GUIDED: experiment("feddistill"), LATER: experiment("local")}
    return BatchProgress(console(terminal=terminal), runs, jobs)


def test_the_time_left_follows_the_pace_of_each_method(clock: Clock) -> None:
    progress = batch()
    progress.see(LOCAL, 0, "")
    assert progress.seconds_left() is None
    assert progress.summary() == "run 1 of 3"
    clock.now += 4
    progress.see(LOCAL, 2, "")  # 2 s a round: 8 rounds of it, 20 of the others, of unknown pace
    assert progress.seconds_left() == 56
    assert progress.summary() == "run 1 of 3, about 56 seconds left"
    clock.now += 16
    progress.see(LOCAL, 10, "")
    progress.ended(LOCAL, "over")
    progress.see(GUIDED, 0, "")
    clock.now += 10
    progress.see(GUIDED, 1, "")  # 10 s a round
    assert progress.seconds_left() == 9 * 10 + 10 * 2
    assert progress.summary().startswith("run 2 of 3, about 1.8 minutes")


def test_jobs_share_the_time_but_no_run_is_shared(clock: Clock) -> None:
    progress = batch(jobs=2)
    progress.see(LOCAL, 0, "")
    progress.see(GUIDED, 0, "")
    clock.now += 10
    progress.see(LOCAL, 5, "")
    progress.see(GUIDED, 1, "")
    assert progress.seconds_left() == 90  # feddistill alone; together (10 + 90 + 20) / 2 = 60
    assert progress.summary() == "runs 1 to 2 of 3, about 90 seconds left".replace("90 seconds", "1.5 minutes")
    assert progress.round_seconds() == 10
    clock.now += 7
    assert progress.round_seconds() == 3


def test_rounds_of_an_earlier_session_say_nothing_on_the_pace(clock: Clock) -> None:
    progress = batch()
    progress.see(LOCAL, 6, "")
    clock.now += 3
    progress.see(LOCAL, 7, "")
    assert progress.seconds_left() == 3 * 3 + 20 * 3


def test_plain_lines_come_every_ten_seconds_and_when_a_run_ends(clock: Clock) -> None:
    progress = batch()
    for round in range(12):
        progress.see(LOCAL, min(round, 10), "accuracy 0.5")
        clock.now += 1.5
    progress.ended(LOCAL, "best accuracy 50.00%, round 3")
    lines = printed(progress.console).splitlines()
    assert lines == [
        "run 1 of 3, about 34 seconds left: local-s0 round 7/10  accuracy 0.5",
        "[1/3] local-s0: best accuracy 50.00%, round 3",
    ]


def record(round: int, accuracy: float) -> RoundRecord:
    return RoundRecord(round, [0], Accuracy(accuracy, accuracy, 0.0, {0: accuracy}), loss=1.25)


def test_runs_of_other_processes_are_followed_by_what_they_record(clock: Clock, tmp_path: Path) -> None:
    path = tmp_path / "local-s0"
    progress = BatchProgress(console(terminal=False), {path: experiment("local")}, jobs=2)
    progress.tick()
    assert progress.summary() == "run 1 of 1"
    path.mkdir()
    run = RunDirectory(reseal(path))
    run.records.append(record(0, 0.25))
    progress.tick()
    clock.now += 6
    run.records.append(record(1, 0.5))
    run.records.append(record(2, 0.75))
    with run.metrics.open("a") as file:
        file.write('{"round": 3, "partic')  # being written
    progress.tick()
    assert progress.seconds_left() == 8 * 3
    assert progress.runs[path].status == "accuracy 0.7500  loss 1.2500"


def test_the_latest_record_is_read_once(tmp_path: Path) -> None:
    assert RunDirectory(tmp_path).latest() == (None, 0)
    run = RunDirectory(reseal(tmp_path))
    assert run.latest() == (None, 0)
    run.records.append(record(0, 0.25))
    first, read = run.latest()
    assert first == record(0, 0.25)
    assert run.latest(read) == (None, read)
    run.records.append(record(1, 0.5))
    with run.metrics.open("a") as file:
        file.write("damaged\n")
    assert run.latest(read) == (None, read)
    run.records.append(record(2, 0.5))
    assert run.latest(read)[0] == record(2, 0.5)


def test_names_rounds_and_times_are_whole_on_a_narrow_terminal() -> None:
    screen = console(terminal=True, width=80)
    bar = progress_bar(screen)
    status = "accuracy 0.8123  best 0.8345 (round 12)  loss 0.1234  12.3 MB"
    bar.add_task("fedl2g-f", total=60, completed=13, status=status)
    (line,) = screen.render_lines(bar.get_renderable(), pad=False)
    text = "".join(segment.text for segment in line).rstrip()
    assert len(text) <= 80
    assert text.startswith("fedl2g-f ━")
    assert " 13/60 accuracy 0.8123 " in text
    assert text.endswith("left -:--:--")


def test_a_terminal_shows_the_runs_under_way_and_all_of_them(clock: Clock) -> None:
    progress = batch(terminal=True)
    progress.see(LOCAL, 0, "")
    clock.now += 4
    progress.see(LOCAL, 2, "accuracy 0.5000")
    assert progress._bar is not None
    shown = [
        "".join(part.text for part in line) for line in progress.console.render_lines(progress._bar.get_renderable())
    ]
    progress.close()
    assert shown[0].split()[0:2] == ["all", "runs"]
    assert " 2/30 run 1 of 3, about 56 seconds left" in shown[0]
    assert shown[1].startswith("local-s0 ")
    assert " 2/10 accuracy 0.5000" in shown[1]


class _Round:
    stop_reason = None


def test_the_message_after_ctrl_c_says_when_the_round_will_end(clock: Clock) -> None:
    interrupt = StopOnInterrupt()
    interrupt.on_start(_Round())  # type: ignore[arg-type]
    clock.now += 3
    interrupt.on_round(_Round(), record(0, 0.1))  # type: ignore[arg-type]
    assert interrupt.message() == "stopping after this round, with a checkpoint"  # its time is unknown
    clock.now += 30
    interrupt.on_round(_Round(), record(1, 0.1))  # type: ignore[arg-type]
    clock.now += 10
    assert interrupt.message() == "stopping after this round, in about 20 seconds, with a checkpoint"
    clock.now += 25
    assert interrupt.message() == "stopping after this round, with a checkpoint"


def test_a_notebook_keeps_how_it_ended_and_no_time_left(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class Shown:
        def update(self, data: dict[str, str], raw: bool) -> None:
            told.append(data["text/plain"])

    def display(data: dict[str, str], **_: object) -> Shown:
        told.append(data["text/plain"])
        return Shown()

    pytest.importorskip("IPython")
    monkeypatch.setattr("IPython.display.display", display)
    notebook = console(terminal=False)
    monkeypatch.setattr(notebook, "is_jupyter", True)
    runs = {LOCAL: experiment("local"), GUIDED: experiment("feddistill")}
    progress = BatchProgress(notebook, runs)
    clock.now += 1
    progress.see(LOCAL, 1, "")
    assert told == ["run 1 of 2: local-s0 round 1/10"]
    progress.runs[LOCAL].over = True
    progress.close()
    assert told[1:] == ["1 of 2 runs over"]
    line = StatusLine(notebook)
    for text in ("round 1", "round 2"):  # the second comes too soon after the first
        clock.now += 0.4
        line.show(text)
        clock.now += 0.2
    line.show("round 3")
    line.end()
    assert told[2:] == ["round 2", "round 3"]
