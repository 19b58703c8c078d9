"""Ratios of times from one interleaved run, with quartiles and an A/A control, robust on a busy machine.

Single-threaded work is timed in CPU seconds of this process, which exclude time taken by other processes. Work in
several processes, or that waits for a disk, is timed by wall clock.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from greenlet import getcurrent, greenlet

Clock = Callable[[], float]


@dataclass(frozen=True)
class Ratio:
    """One time over another: the median of the repetitions' ratios, and their quartiles."""

    name: str
    median: float
    low: float
    high: float
    repeats: int
    seconds: float  # of the numerator, median
    target: str = ""

    def __str__(self) -> str:
        target = f"   target {self.target}" if self.target else ""
        return f"{self.name:<58}{self.median:7.3f}  [{self.low:.3f}, {self.high:.3f}]{target}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, rounded."""
        return {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(self).items() if v != ""}


def interleaved(
    subjects: Mapping[str, Callable[[], object]], repeats: int, clock: Clock = time.process_time
) -> dict[str, list[float]]:
    """The seconds of each subject, interleaved `repeats` times; every second repetition in reverse order."""
    names = list(subjects)
    for name in names:  # warm-up: allocations, kernels chosen on first use
        subjects[name]()
    found: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(repeats):
        for name in names if turn % 2 == 0 else reversed(names):
            started = clock()
            subjects[name]()
            found[name].append(clock() - started)
    return found


def abreast(
    builders: Mapping[str, Callable[[], Callable[[], object]]], repeats: int, builds: int = 2
) -> dict[str, list[float]]:
    """The CPU seconds of subjects that run interleaved, a few steps of each at a time: see `pause`.

    The speed of a shared machine varies by a tenth from one second to the next. Subjects that alternate every few
    hundredths of a second see the same conditions. They are rebuilt several times, each time in another order, because
    the addresses of its tensors make a loop several percent faster or slower for its whole life.
    """
    names = list(builders)
    found: dict[str, list[float]] = {name: [] for name in names}
    for build in range(builds):
        order = names[build % len(names) :] + names[: build % len(names)]
        subjects = {name: builders[name]() for name in order}
        for turn in range(-1, repeats):  # the first is a warm-up: allocations, kernels chosen on first use
            seconds = _race(subjects if turn % 2 else dict(reversed(subjects.items())))
            if turn >= 0:
                for name in names:
                    found[name].append(seconds[name])
    return found


_STEPS = 5  # before switching to the next subject


def pause() -> None:
    """Called by a subject at every step; switches to the next subject every few steps."""
    lane = getcurrent()
    if isinstance(lane, _Lane):
        lane.step()


class _Lane(greenlet):
    """A running subject with its own stack.

    All share one thread. In separate threads, repeated runs differed more (resnet18: 1.05 to 1.11); the likely
    cause, not proven, is scratch memory that libraries keep for each thread.
    """

    def __init__(self, subject: Callable[[], object]) -> None:
        super().__init__(subject)
        self.seconds, self.steps = 0.0, 0

    def step(self) -> None:
        self.steps += 1
        if self.steps % _STEPS == 0:
            gradients = torch.is_grad_enabled()  # a thread-wide flag: another subject may be evaluating
            torch.set_grad_enabled(True)
            self.parent.switch()
            torch.set_grad_enabled(gradients)


def _race(subjects: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Run every subject once, interleaved."""
    lanes = {name: _Lane(subject) for name, subject in subjects.items()}
    running = deque(lanes.values())
    while running:
        lane = running.popleft()
        started = time.thread_time()
        lane.switch()
        lane.seconds += time.thread_time() - started
        if not lane.dead:
            running.append(lane)
    return {name: lane.seconds for name, lane in lanes.items()}


def ratio(name: str, times: list[float], base: list[float], target: str = "") -> Ratio:
    """The ratio of times measured in the same repetitions."""
    ratios = sorted(a / b for a, b in zip(times, base, strict=True))
    if len(ratios) > 2:
        low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    else:
        low, high = ratios[0], ratios[-1]
    return Ratio(name, statistics.median(ratios), low, high, len(ratios), statistics.median(times), target)


def machine() -> dict[str, Any]:
    """The machine of a measurement, and its load."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in _read("/proc/cpuinfo").splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "cpu": model,
        "cpus": os.cpu_count(),
        "load": [round(value, 2) for value in os.getloadavg()],
        "torch": torch.__version__,
        "python": platform.python_version(),
        "when": time.strftime("%Y-%m-%d %H:%M"),
    }


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
