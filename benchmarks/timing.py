"""Ratios of times from one interleaved run, with their spread and an A/A control, that hold on a busy machine.

Single-threaded work is timed by the CPU seconds of this process: they leave out the time in which the machine did
something else. What runs in several processes, or waits for a disk, is timed by the clock on the wall.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

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
    """The seconds of each subject, run in turn `repeats` times; every second turn goes backwards."""
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


def rebuilt(
    builders: Mapping[str, Callable[[], Callable[[], object]]], repeats: int, builds: int = 3
) -> dict[str, list[float]]:
    """As `interleaved`, with subjects that are built anew several times, each time in another order.

    Where its tensors happen to lie in memory makes a loop several percent faster or slower for as long as it lives.
    """
    names = list(builders)
    found: dict[str, list[float]] = {name: [] for name in names}
    for build in range(builds):
        order = names[build % len(names) :] + names[: build % len(names)]
        subjects = {name: builders[name]() for name in order}
        for name, seconds in interleaved(subjects, repeats).items():
            found[name] += seconds
    return found


def ratio(name: str, times: list[float], base: list[float], target: str = "") -> Ratio:
    """The ratio of times measured in the same turns."""
    ratios = sorted(a / b for a, b in zip(times, base, strict=True))
    if len(ratios) > 2:
        low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    else:
        low, high = ratios[0], ratios[-1]
    return Ratio(name, statistics.median(ratios), low, high, len(ratios), statistics.median(times), target)


def machine() -> dict[str, Any]:
    """What the numbers were measured on, and how busy it was."""
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
