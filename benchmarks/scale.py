"""Memory and time per round with 10 to 10,000 clients: `python benchmarks/scale.py`, in minutes.

Each row is a run in a process of its own (start, rounds, checkpoints, end), on random 1 x 28 x 28 images made here. The
memory is the largest sum, over the processes of the run, of what they hold beyond pages of files (anonymous memory).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from timing import machine

RESULTS = Path(__file__).parent / "results"
SAMPLES = 60  # of each client: 45 to train on (4 batches of 10, or 3 and the quiz), 15 to test on

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


def measure(folder: Path, name: str, **settings: Any) -> dict[str, Any]:
    """Run an experiment in a process of its own and watch its memory."""
    clients = settings["clients"]
    data = folder / f"random-{clients}.npz"
    if not data.exists():
        generator = np.random.default_rng(0)
        images = generator.integers(0, 256, (clients * SAMPLES, 28, 28), dtype=np.uint8)
        np.savez(data, images=images, labels=np.arange(clients * SAMPLES) % 10)
    experiment = {"dataset": str(data), "partition": "iid", "patience": 0, **settings}
    command = [sys.executable, "-W", "ignore", "-c", RUN, json.dumps(experiment), str(folder / f"run-{name}")]
    environment = {**os.environ, "FEDL2G_DATA": str(folder / "datasets"), "OMP_NUM_THREADS": "1"}
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


def main() -> None:
    """Measure, print a table and write results/scale.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help="names of rows to measure; all by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    common = {"method": {"name": "fedl2g-f", "warmup_rounds": 0}, "rounds": options.rounds, "evaluate_clients": 100}
    every = {"checkpoint_every": options.rounds}
    rows: dict[str, dict[str, Any]] = {
        "10": {"clients": 10, "models": "small", "execution": every},
        "100": {"clients": 100, "models": "small", "execution": every},
        "1000 of 1000": {"clients": 1000, "models": "small", "rounds": 2, "execution": {"checkpoint_every": 2}},
        "10000, 1 %": {"clients": 10_000, "models": "small", "participation": 0.01, "execution": every},
        "100 again": {"clients": 100, "models": "small", "execution": every},
        "1000 cnn4, 2 workers, 500 MB": {
            "clients": 1000,
            "models": "cnn4",
            "rounds": 2,
            "execution": {"engine": "workers", "workers": 2, "memory_mb": 500, "checkpoint_every": 2},
        },
    }
    about, found = machine(), []
    print(f"load {about['load'][0]} on {about['cpus']} cores")
    print(
        f"{'clients':<32}{'memory MB':>10}{'start s':>9}{'evaluate s':>11}"
        f"{'s/round':>9}{'CPU s/round':>12}{'total s':>9}"
    )
    with tempfile.TemporaryDirectory(prefix="fedl2g-scale-") as name:
        for row in options.rows or rows:
            result = measure(Path(name), row, **{**common, **rows[row]})
            found.append(result)
            keys = ("memory_mb", "start_seconds", "first_evaluation_seconds", "round_seconds", "round_cpu_seconds")
            print(
                f"{row:<32}" + "".join(f"{result[k]:>{w}}" for k, w in zip(keys, (10, 9, 11, 9, 12), strict=True)),
                end="",
            )
            print(f"{result['total_seconds']:>9}", flush=True)
    by_name = {row["name"]: row for row in found}
    ratios = {}
    if "100" in by_name and "10000, 1 %" in by_name:
        base = [by_name[n]["round_cpu_seconds"] for n in ("100", "100 again") if n in by_name]
        ratios["10000 at 1 % / 100 in full, CPU per round"] = round(
            by_name["10000, 1 %"]["round_cpu_seconds"] / statistics.fmean(base), 3
        )
        if len(base) == 2:
            ratios["  A/A: 100 / 100"] = round(base[1] / base[0], 3)
        for label, value in ratios.items():
            print(f"{label}: {value}")
    options.out.mkdir(parents=True, exist_ok=True)
    command = f"python benchmarks/scale.py {' '.join(sys.argv[1:])}".strip()
    text = json.dumps({"command": command, "machine": about, "rows": found, "ratios": ratios}, indent=1)
    (options.out / "scale.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
