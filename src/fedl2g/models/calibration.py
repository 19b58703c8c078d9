"""Measured training step times on this machine, for load balancing and estimates."""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import platformdirs
import torch
from filelock import FileLock
from torch.nn import functional as F

from fedl2g.errors import SettingError, choices
from fedl2g.files import replacing
from fedl2g.models.build import build_model
from fedl2g.models.example import example_batch
from fedl2g.process import cpu_model, keep_freed_memory, one_thread
from fedl2g.references import is_reference
from fedl2g.schema import Schema

LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}

# Fast networks are sampled for at least a tenth of a second, since steps of a few milliseconds vary widely; slow ones
# stop at the budget.
_SAMPLES = 7
_SAMPLING_SECONDS = 0.1
_BUDGET_SECONDS = 1.0
_CLEARLY_FASTER = 1.05


def step_seconds(
    name: str,
    *,
    classes: int,
    inputs: Schema,
    batch_size: int = 10,
    layout: str = "contiguous",
) -> float:
    """CPU seconds of one plain training step of an architecture on one thread.

    CPU time, because the result is cached and must not depend on the current load. Measured once per machine and cached
    in the user's cache folder, or in $FEDL2G_CACHE. A user's own factory is measured every time, since its code may
    have changed. Random state and thread count are restored.
    """
    if layout not in LAYOUTS:
        raise SettingError(f"layout: {layout!r} is not known; {choices(layout, LAYOUTS)}")
    if batch_size < 2:
        raise SettingError(f"batch_size: {batch_size} is not allowed; expected at least 2 (for BatchNorm)")
    shape = "x".join(map(str, inputs.shape))
    what = f"{name} {shape} classes={classes} batch={batch_size} {layout} CPU seconds"
    key = f"{what} torch={torch.__version__} cpu={cpu_model()}"
    return _cached(name, key, lambda: _measure(name, classes, inputs, batch_size, LAYOUTS[layout]))


def faster_layout(name: str, *, classes: int, inputs: Schema, batch_size: int = 10) -> str:
    """The memory layout with the faster training step of an architecture on this machine.

    Both are measured alternately, once per machine, and the ratio is cached; `contiguous` unless the other is clearly
    faster, so that noise does not decide.
    """
    shape, batch_size = "x".join(map(str, inputs.shape)), max(2, batch_size)
    key = f"{name} {shape} classes={classes} batch={batch_size} speed-up torch={torch.__version__} cpu={cpu_model()}"

    def speed_up() -> float:
        with one_thread(), torch.random.fork_rng(devices=[]), torch.enable_grad():
            steps = [_stepper(name, classes, inputs, batch_size, layout) for layout in LAYOUTS.values()]
            return _interleaved_ratio(*steps)

    return "channels_last" if _cached(name, key, speed_up) > _CLEARLY_FASTER else "contiguous"


def _cached(name: str, key: str, measure: Callable[[], float]) -> float:
    """The cached value for the key, else the result of `measure`.

    Only one process measures at a time: two would disturb each other and might use different values.
    """
    found = _read_cache().get(key)
    if found is not None:
        return found
    with _locked_cache():
        cache = _read_cache()  # another process may have measured it while this one waited
        if key not in cache:
            cache[key] = measure()
            if not is_reference(name):
                _write_cache(cache)
    return cache[key]


def _interleaved_ratio(first: Callable[[], object], second: Callable[[], object]) -> float:
    """The ratio of the CPU times of two calls, measured alternately; the median over several turns."""

    def seconds(call: Callable[[], object]) -> float:
        started = time.process_time()
        call()
        return max(time.process_time() - started, 1e-9)

    spent = seconds(first) + seconds(second)
    if spent < _BUDGET_SECONDS / _SAMPLES:
        first(), second()
        spent = 0.0
    ratios: list[float] = []
    while len(ratios) < _SAMPLES and (spent < 2 * _BUDGET_SECONDS or not ratios):
        repeats = 1 if spent > 0.02 * (len(ratios) + 1) else 3  # the CPU clock is coarse on some systems
        times = [sum(seconds(call) for _ in range(repeats)) for call in (first, second)]
        spent += sum(times)
        ratios.append(times[0] / times[1])
    return statistics.median(ratios)


def _measure(name: str, classes: int, inputs: Schema, batch_size: int, layout: torch.memory_format) -> float:
    with one_thread(), torch.random.fork_rng(devices=[]), torch.enable_grad():
        step = _stepper(name, classes, inputs, batch_size, layout)
        warm_up = step()
        if warm_up < _BUDGET_SECONDS / _SAMPLES:
            step()
        samples = [step()]
        while (len(samples) < _SAMPLES and sum(samples) + samples[-1] < _BUDGET_SECONDS) or (
            sum(samples) < _SAMPLING_SECONDS
        ):
            samples.append(step())
    return statistics.median(samples)


def _stepper(
    name: str, classes: int, inputs: Schema, batch_size: int, layout: torch.memory_format
) -> Callable[[], float]:
    """A function that runs one training step and returns its CPU seconds."""
    keep_freed_memory()  # as every host does
    model = build_model(name, classes=classes, inputs=inputs).train()
    model = model.to(memory_format=layout) if inputs.kind == "image" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = example_batch(inputs, batch_size)
    x = x.contiguous(memory_format=layout) if inputs.kind == "image" else x
    labels = torch.arange(batch_size) % classes

    def step() -> float:
        start = time.process_time()
        optimizer.zero_grad()
        _, logits = model(x)
        F.cross_entropy(logits, labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return time.process_time() - start

    return step


def _cache_file() -> Path:
    folder = os.environ.get("FEDL2G_CACHE") or platformdirs.user_cache_dir("fedl2g")
    return Path(folder) / "calibration.json"


@contextmanager
def _locked_cache() -> Iterator[None]:
    """Lock the cache file if possible; a read-only folder is not an error."""
    with ExitStack() as held:
        with suppress(OSError, NotImplementedError):
            _cache_file().parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(FileLock(_cache_file().with_suffix(".lock")))
        yield


def _read_cache() -> dict[str, float]:
    """The cached measurements; empty if the file is missing or damaged."""
    try:
        stored = json.loads(_cache_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(stored, dict):
        return {}
    return {
        key: float(value) for key, value in stored.items() if isinstance(value, int | float) and 0 < value < math.inf
    }


def _write_cache(cache: dict[str, float]) -> None:
    """Write the cache; a read-only folder is not an error."""
    with suppress(OSError):
        _cache_file().parent.mkdir(parents=True, exist_ok=True)
        with replacing(_cache_file(), durable=False) as partial:  # if lost, it is measured again
            partial.write_text(json.dumps(cache, indent=1, sort_keys=True), encoding="utf-8")
