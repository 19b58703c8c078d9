"""A hundred kills at random moments, over methods, settings and engines: each run ends like an undisturbed one."""

from __future__ import annotations

import multiprocessing
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import fedl2g
from compared import experiment
from fedl2g.experiment import Experiment
from method_settings import BUILT_IN

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes through /proc"),
]

SEED = 20
ENGINES = ("inline", "inline", "workers", "flower")  # a kill each, of every experiment
GONE_SECONDS = 10.0
_EARLY = 0.2  # of the kills come before the first record
_LONGER: dict[str, Any] = {"rounds": 8, "participation": 0.75, "execution": {"checkpoint_every": 1}}
_OPTIONS = {
    "name": "fedl2g-l",
    "quiz": "rotating",
    "guide_weight": "adaptive",
    "server_step": "rms",
    "warmup_rounds": 1,
}
EXPERIMENTS: dict[str, Callable[[], Experiment]] = {
    **{method: lambda method=method: experiment(method, "plain", **_LONGER) for method in BUILT_IN},  # type: ignore[misc]
    **{
        f"{method}, {setting}": lambda method=method, setting=setting: experiment(method, setting, **_LONGER)  # type: ignore[misc]
        for method, setting in (
            ("feddistill", "availability"), ("fedproto", "attack"), ("fedl2g-f", "noise"), ("lg-fedavg", "robust rule"),
            ("fedl2g-l", "privacy, client"), ("feddistill", "privacy, server"), ("fedproto", "privacy, counted"),
            ("fedl2g-f", "dense"), ("fedmrl", "availability"), ("fedgh", "attack"),
            ("fedtgp", "robust rule"), ("fedgen", "availability"),
        )
    },
    "fedl2g-l, options": lambda: Experiment(
        **{**dict(experiment("fedl2g-l", "plain", **_LONGER)), "method": _OPTIONS}
    ),
    "fedl2g-f, adamw": lambda: experiment("fedl2g-f", "plain", **{**_LONGER, "optimizer": {"name": "adamw"}}),
    "fedproto, adamw and patience": lambda: experiment(
        "fedproto", "plain", **{**_LONGER, "optimizer": {"name": "adamw"}, "patience": 3}
    ),
}  # fmt: skip

# Processes forked from a server that has torch loaded start at once, and have nothing else of this one.
FORKS = multiprocessing.get_context("forkserver")
_MODULES = ("runs.runner", "models.small", "models.build", "methods.fedl2g", "engines.inline", "engines.workers")
FORKS.set_forkserver_preload(["sklearn.datasets", *(f"fedl2g.{module}" for module in _MODULES)])


def _run(toml: str, out: str) -> None:
    """In a process of its own."""
    fedl2g.run(Experiment.from_toml(toml), out)


def _start(experiment: Experiment, out: Path) -> Any:
    process = FORKS.Process(target=_run, args=(experiment.to_toml(), str(out)))
    process.start()
    return process


def children_of(pid: int) -> list[int]:
    """The processes that a process has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            found.append(int(folder.name))
    return found


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@dataclass(frozen=True)
class _Times:
    """How long a run takes until its first record, and from there to its end."""

    before: float
    rounds: float


def _undisturbed(experiment: Experiment, out: Path) -> _Times:
    started = time.monotonic()
    process = _start(experiment, out)
    _wait(lambda: _recorded(out) or not process.is_alive())
    recorded = time.monotonic()
    process.join()
    assert process.exitcode == 0
    return _Times(recorded - started, time.monotonic() - recorded)


def _recorded(out: Path) -> bool:
    metrics = out / "metrics.jsonl"
    return metrics.is_file() and metrics.stat().st_size > 0


def _wait(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.005)


def _killed(experiment: Experiment, out: Path, times: _Times, draw: random.Random) -> int:
    """Run it until it is killed at a random moment, mostly in its rounds; returns how many processes it had then."""
    early, moment = draw.random() < _EARLY, draw.random()
    while True:
        shutil.rmtree(out, ignore_errors=True)
        process = _start(experiment, out)
        if not early:
            _wait(lambda process=process: _recorded(out) or not process.is_alive())  # type: ignore[misc]
        process.join(moment * (times.before if early else times.rounds))
        children = children_of(process.pid)
        process.kill()
        process.join()
        if process.exitcode == -signal.SIGKILL:
            break
        assert process.exitcode == 0
        moment *= 0.8  # it was faster than the undisturbed one, and is tried again
    _wait(lambda: not any(map(is_running, children)), GONE_SECONDS)
    return len(children)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_run_killed_at_a_random_moment_ends_like_its_undisturbed_twin(
    name: str, tmp_path: Path, outcome: Callable[[Path], dict[str, Any]], record_property: Callable[[str, object], None]
) -> None:
    one = EXPERIMENTS[name]()
    times = _undisturbed(one, tmp_path / "twin")
    expected = outcome(tmp_path / "twin")
    draw = random.Random(f"{SEED} {name}")
    different = processes = begun = 0
    for number, engine in enumerate(ENGINES):
        out = tmp_path / f"run-{number}"
        execution = {**dict(one.execution), "engine": engine, "workers": 2}
        processes += _killed(Experiment(**{**dict(one), "execution": execution}), out, times, draw) > 0
        begun += _recorded(out)
        fedl2g.run(one, out)
        different += outcome(out) != expected
        assert sorted(path.name for path in out.iterdir() if path.name.startswith((".", "scratch"))) == []
    counts = {"kills": len(ENGINES), "after the first record": begun, "with worker processes": processes}
    record_property("figures", {"kills at random moments": {**counts, "different": different}})
    assert different == 0
