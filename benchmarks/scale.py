"""Memory and time per round with 10 to 10,000 clients: `python benchmarks/scale.py`, in minutes.

Each row is a run in its own process (start, rounds, checkpoints, end) on random 1 x 28 x 28 images. Memory is the peak
of the anonymous memory of all processes of the run together.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from bench import federation_of, own_caches, rounds_of, take_turns
from timing import Ratio, abreast, machine, ratio

from fedl2g.datasets import load_dataset, make_partition
from fedl2g.experiment import Experiment
from fedl2g.process import rare_garbage_collection
from fedl2g.setup import Setup

RESULTS = Path(__file__).parent / "results"
SAMPLES = 100  # of each client: 75 to train on (7 batches of 10, or 6 and the quiz), 25 to test on
METHOD = {"name": "fedl2g-f", "warmup_rounds": 0}

RUN = """
import json, sys, time, resource
started = time.perf_counter()
import fedl2g
from fedl2g.federation import Observer

class Note(Observer):
    def __init__(self):
        self.times, self.cpu = [], []
    def on_start(self, federation):
        self.note()
    def on_round(self, federation, record):
        self.note()
    def note(self):
        self.times.append(time.perf_counter())
        usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        self.cpu.append(sum(u.ru_utime + u.ru_stime for u in usage))

settings = json.loads(sys.argv[1])
note = Note()
fedl2g.run(fedl2g.Experiment(**settings), sys.argv[2], [note])
pairs = lambda values: [b - a for a, b in zip(values, values[1:])]
print(json.dumps({"start": note.times[0] - started, "rounds": pairs(note.times), "cpu": pairs(note.cpu),
                  "total": time.perf_counter() - started}))
"""


def random_images(folder: Path, clients: int) -> Path:
    """A dataset of noise with `SAMPLES` images for each client."""
    path = folder / f"random-{clients}.npz"
    if not path.exists():
        generator = np.random.default_rng(0)
        images = generator.integers(0, 256, (clients * SAMPLES, 28, 28), dtype=np.uint8)
        np.savez(path, images=images, labels=np.arange(clients * SAMPLES) % 10)
    return path


def measure(folder: Path, name: str, **settings: Any) -> dict[str, Any]:
    """Run an experiment in a subprocess and sample its memory."""
    clients = settings["clients"]
    experiment = {"dataset": str(random_images(folder, clients)), "partition": "iid", "patience": 0, **settings}
    command = [sys.executable, "-W", "ignore", "-c", RUN, json.dumps(experiment), str(folder / f"run-{name}")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    peak = [0]
    watcher = threading.Thread(target=_watch, args=(process, peak), daemon=True)
    watcher.start()
    output, _ = process.communicate()
    watcher.join()
    if process.returncode:
        raise SystemExit(f"{name} failed")
    found = json.loads(output.splitlines()[-1])
    trained = found["rounds"][1:]  # the first interval is the evaluation before the first round
    return {
        "name": name,
        "clients": clients,
        "memory_mb": round(peak[0] / 2**20),
        "start_seconds": round(found["start"], 1),
        "first_evaluation_seconds": round(found["rounds"][0], 1),
        "round_seconds": round(statistics.median(trained), 2),
        "round_cpu_seconds": round(statistics.median(found["cpu"][1:]), 2),
        "total_seconds": round(found["total"], 1),
        "settings": {key: value for key, value in settings.items() if key != "clients"},
    }


def _watch(process: subprocess.Popen[str], peak: list[int]) -> None:
    while process.poll() is None:
        peak[0] = max(peak[0], sum(_anonymous(pid) for pid in _family(process.pid)))
        time.sleep(0.1)


def _family(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        try:
            text = Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="utf-8")
        except OSError:
            continue
        found += [int(child) for child in text.split()]
    return found


def _anonymous(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def in_turn(folder: Path, repeats: int) -> list[Ratio]:
    """A round of 10,000 clients at 1 % / one of 100 in full, interleaved in this process."""
    torch.set_num_threads(1)
    take_turns()

    def federation(clients: int, participation: float) -> Callable[[], Callable[[], None]]:
        experiment = Experiment(
            method=METHOD,
            dataset=str(random_images(folder, clients)),
            partition="iid",
            clients=clients,
            participation=participation,
            models="small",
            evaluate_clients=100,
            rounds=100_000,
        )
        dataset = load_dataset(experiment.dataset)
        partition = make_partition("iid", dataset.labels, None, clients=clients, classes=10, seed=0)
        return lambda: rounds_of(federation_of(Setup(experiment, dataset, partition)))

    builders = {"many": federation(10_000, 0.01), "few": federation(100, 1.0), "again": federation(100, 1.0)}
    with rare_garbage_collection():  # as in every run
        times = abreast(builders, repeats)
    return [
        ratio("10000 at 1 % / 100 in full, CPU per round", times["many"], times["few"], "<= 1.10"),
        ratio("  A/A: 100 / 100", times["again"], times["few"]),
    ]


def main() -> None:
    """Measure, print a table and write results/scale.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help="names of rows to measure; all by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5, help="of 10,000 clients against 100 in turn; 0 leaves it out")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    common = {"method": METHOD, "rounds": options.rounds, "evaluate_clients": 100}
    every = {"checkpoint_every": options.rounds}
    rows: dict[str, dict[str, Any]] = {
        "10": {"clients": 10, "models": "small", "execution": every},
        "100": {"clients": 100, "models": "small", "execution": every},
        "1000 of 1000": {"clients": 1000, "models": "small", "rounds": 2, "execution": {"checkpoint_every": 2}},
        "10000, 1 %": {"clients": 10_000, "models": "small", "participation": 0.01, "execution": every},
        "10000, 1 %, 100 MB": {
            "clients": 10_000,
            "models": "small",
            "participation": 0.01,
            "execution": {**every, "memory_mb": 100},
        },
        "1000 cnn4, 2 workers, 500 MB": {
            "clients": 1000,
            "models": "cnn4",
            "rounds": 2,
            "execution": {"engine": "workers", "workers": 2, "memory_mb": 500, "checkpoint_every": 2},
        },
    }
    if unknown := set(options.rows) - rows.keys():
        parser.error(f"unknown row {sorted(unknown)[0]!r}; there are: {'; '.join(rows)}")
    about, found = machine(), []
    print(f"load {about['load'][0]} on {about['cpus']} cores")
    print(
        f"{'clients':<32}{'memory MB':>10}{'start s':>9}{'evaluate s':>11}"
        f"{'s/round':>9}{'CPU s/round':>12}{'total s':>9}"
    )
    with own_caches() as folder:
        for row in options.rows or rows:
            result = measure(folder, row, **{**common, **rows[row]})
            found.append(result)
            keys = ("memory_mb", "start_seconds", "first_evaluation_seconds", "round_seconds", "round_cpu_seconds")
            print(
                f"{row:<32}" + "".join(f"{result[k]:>{w}}" for k, w in zip(keys, (10, 9, 11, 9, 12), strict=True)),
                end="",
            )
            print(f"{result['total_seconds']:>9}", flush=True)
        ratios = in_turn(folder, options.repeats) if options.repeats else []
        for result in ratios:
            print(result, flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    command = shlex.join(["python", "benchmarks/scale.py", *sys.argv[1:]])
    text = json.dumps(
        {"command": command, "machine": about, "rows": found, "ratios": [r.to_dict() for r in ratios]}, indent=1
    )
    (options.out / "scale.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
