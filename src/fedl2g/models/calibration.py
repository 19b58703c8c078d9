"""How long a training step of an architecture takes on this machine, so that work can be shared out and foretold."""

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

from fedl2g.errors import SettingError, nearest
from fedl2g.files import replacing
from fedl2g.models.build import build_model
from fedl2g.process import cpu_model, keep_freed_memory, one_thread
from fedl2g.references import is_reference

LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}

# Fast networks are sampled for a tenth of a second at least, since single steps of a few milliseconds scatter widely;
# slow ones stop at the budget.
_SAMPLES = 7
_SAMPLING_SECONDS = 0.1
_BUDGET_SECONDS = 1.0
_CLEARLY_FASTER = 1.05


def step_seconds(
    name: str,
    *,
    classes: int,
    image_shape: tuple[int, int, int],
    batch_size: int = 10,
    layout: str = "contiguous",
) -> float:
    """CPU seconds that one plain training step of an architecture takes with one thread.

    CPU time, because it is remembered: other work on the machine at this moment must not count for ever. Measured once
    per machine and kept in the user's cache folder, or in the folder named by FEDL2G_CACHE. A user's own factory is
    measured every time, since its code may have changed. Random state and thread count are left as found.
    """
    if layout not in LAYOUTS:
        raise SettingError(f"There is no layout {layout!r}.{nearest(layout, LAYOUTS)} Layouts: {', '.join(LAYOUTS)}.")
    if batch_size < 2:
        raise SettingError(f"A training step needs a batch of at least 2 images (BatchNorm), not {batch_size}.")
    shape = "x".join(map(str, image_shape))
    what = f"{name} {shape} classes={classes} batch={batch_size} {layout} CPU seconds"
    key = f"{what} torch={torch.__version__} cpu={cpu_model()}"
    return _remembered(name, key, lambda: _measure(name, classes, image_shape, batch_size, LAYOUTS[layout]))


def faster_layout(name: str, *, classes: int, image_shape: tuple[int, int, int], batch_size: int = 10) -> str:
    """The memory layout in which a training step of an architecture takes less CPU time on this machine.

    Both are measured in turn, once per machine, and the ratio is remembered; `contiguous` unless the other is clearly
    faster, so that noise decides nothing.
    """
    shape, batch_size = "x".join(map(str, image_shape)), max(2, batch_size)
    key = f"{name} {shape} classes={classes} batch={batch_size} speed-up torch={torch.__version__} cpu={cpu_model()}"

    def speed_up() -> float:
        with one_thread(), torch.random.fork_rng(devices=[]), torch.enable_grad():
            steps = [_stepper(name, classes, image_shape, batch_size, layout) for layout in LAYOUTS.values()]
            return _interleaved_ratio(*steps)

    return "channels_last" if _remembered(name, key, speed_up) > _CLEARLY_FASTER else "contiguous"


def _remembered(name: str, key: str, measure: Callable[[], float]) -> float:
    """What an earlier call measured, else what `measure` finds now.

    One process measures at a time: two would disturb each other, and might then go by different numbers.
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
    """How many times as long the first takes as the second: the median over turns of CPU time."""

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
        repeats = 1 if spent > 0.02 * (len(ratios) + 1) else 3  # the clock of a process is coarse on some systems
        times = [sum(seconds(call) for _ in range(repeats)) for call in (first, second)]
        spent += sum(times)
        ratios.append(times[0] / times[1])
    return statistics.median(ratios)


def _measure(
    name: str, classes: int, image_shape: tuple[int, int, int], batch_size: int, layout: torch.memory_format
) -> float:
    with one_thread(), torch.random.fork_rng(devices=[]), torch.enable_grad():
        step = _stepper(name, classes, image_shape, batch_size, layout)
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
    name: str, classes: int, image_shape: tuple[int, int, int], batch_size: int, layout: torch.memory_format
) -> Callable[[], float]:
    """A function that makes one training step and returns its CPU seconds."""
    keep_freed_memory()  # as every host does
    model = build_model(name, classes=classes, image_shape=image_shape).train()
    model = model.to(memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images = torch.randn(batch_size, *image_shape).contiguous(memory_format=layout)
    labels = torch.arange(batch_size) % classes

    def step() -> float:
        start = time.process_time()
        optimizer.zero_grad()
        _, logits = model(images)
        F.cross_entropy(logits, labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return time.process_time() - start

    return step


def _cache_file() -> Path:
    folder = os.environ.get("FEDL2G_CACHE") or platformdirs.user_cache_dir("fedl2g")
    return Path(folder) / "calibration.json"


@contextmanager
def _locked_cache() -> Iterator[None]:
    """Hold the cache file, where it can be held: a folder we may not write is no error."""
    with ExitStack() as held:
        with suppress(OSError, NotImplementedError):
            _cache_file().parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(FileLock(_cache_file().with_suffix(".lock")))
        yield


def _read_cache() -> dict[str, float]:
    """What earlier calls measured; nothing when the file is missing or broken, since it can always be made again."""
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
    """Keep what was measured; a folder we may not write is no error."""
    with suppress(OSError):
        _cache_file().parent.mkdir(parents=True, exist_ok=True)
        with replacing(_cache_file(), durable=False) as partial:  # lost in a power cut, it is measured again
            partial.write_text(json.dumps(cache, indent=1, sort_keys=True), encoding="utf-8")
