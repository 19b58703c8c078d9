"""When does federation help? Every regime x method x seed, against local training on the same clients.

    python benchmarks/when_it_helps.py --data DIR            # run what is missing; DIR holds the packed image sets
    python benchmarks/when_it_helps.py --only digits         # the embedded digits alone: needs no DIR
    python benchmarks/when_it_helps.py --table               # the Markdown table of what is there

Each run is a run of the package in this process (inline engine, one thread). Its result is one entry of the regime's
file in benchmarks/results/when-it-helps/; finished entries are not repeated, so the study can be interrupted at any
time. Seed 0 of everything comes first, then seed 1, and so on: after each pass the table is complete. With `--jobs 2`
two runs go on at the same time.

Every method trains for the same number of rounds; FedL2G's warm-up rounds, in which no client trains, come on top.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedl2g.experiment import Experiment
from fedl2g.files import write_text
from fedl2g.setup import Setup, prepare

RESULTS = Path(__file__).parent / "results" / "when-it-helps"
RMS_STEP = 0.1
ROTATING, ADAPTIVE = {"quiz": "rotating"}, {"guide_weight": "adaptive"}
RMS = {"server_step": "rms", "rms_step": RMS_STEP}

METHODS: dict[str, dict[str, Any]] = {
    "local": {"name": "local"},
    **{
        f"fedl2g-{space}{suffix}": {"name": f"fedl2g-{space}", **options}
        for suffix, options in {
            "": {},
            ", recommended": {**ROTATING, **ADAPTIVE, **RMS},
            ", frozen": {"server_lr": 0.0},
            ", rotating": ROTATING,
            ", adaptive": ADAPTIVE,
            ", rms": RMS,
        }.items()
        for space in ("l", "f")
    },
    "feddistill": {"name": "feddistill"},
    "fedproto": {"name": "fedproto"},
    "fedmrl": {"name": "fedmrl"},
}


@dataclass(frozen=True)
class Regime:
    """One setting: its data, its clients, and how long they train."""

    name: str
    seeds: int
    settings: dict[str, Any]
    packed: str = ""  # the packed image set in --data; "" for a dataset of the package
    splits: tuple[str, ...] = ("train",)
    rounds: int = 20
    warmup: int = 10
    methods: tuple[str, ...] = field(default=tuple(METHODS))


def _digits(name: str, clients: int, partition: str) -> Regime:
    settings = {"dataset": "digits", "image_size": 16, "partition": partition, "models": "small", "clients": clients}
    return Regime(name, 5, settings, rounds=30)


def _images(name: str, packed: str, partition: str, **more: Any) -> Regime:
    settings = {"samples": 4000, "image_size": 32, "partition": partition, "models": "small", "clients": 20}
    return Regime(name, 3, settings, packed, **more)


DOMAINS = ("photo", "art_painting", "cartoon", "sketch")
REGIMES = (
    _digits("digits, 20 clients, Dirichlet 0.1", 20, "dirichlet:0.1"),
    _digits("digits, 40 clients, Dirichlet 0.5", 40, "dirichlet:0.5"),
    _digits("digits, 20 clients, IID", 20, "iid"),
    _images("PACS, 20 clients by domain", "pacs", "domain", splits=DOMAINS),
    _images("Cifar10, 20 clients, Dirichlet 0.1", "cifar10", "dirichlet:0.1"),
    _images("Cifar100, 20 clients, Dirichlet 0.1", "cifar100", "dirichlet:0.1"),
    _images("Flowers102, 20 clients, Dirichlet 0.1", "flowers102", "dirichlet:0.1", splits=("train", "val", "test")),
    Regime(
        "Cifar10, 10 clients, HtFE_2 (cnn4, resnet18)",
        1,
        {"samples": 2000, "partition": "dirichlet:0.1", "models": "htfe2", "clients": 10},
        "cifar10",
        rounds=10,
        warmup=5,
        methods=("local", "fedl2g-l", "fedl2g-l, recommended", "fedl2g-f", "fedl2g-f, recommended", "feddistill"),
    ),
)


def unpack(regime: Regime, data: Path | None, work: Path) -> str:
    """The dataset setting of a regime; a packed image set is written to `work` as an .npz file for the package."""
    if not regime.packed:
        return str(regime.settings["dataset"])
    target = work / f"{regime.packed}.npz"
    if not target.exists():
        if data is None:
            sys.exit(f"--data: needed for {regime.name}; expected the folder with {regime.packed}.npz and load.py")
        sys.path.insert(0, str(data))
        from load import load  # the reader that belongs to the packed files

        parts = [load(str(data / f"{regime.packed}.npz"), split) for split in regime.splits]
        arrays = {"images": np.concatenate([x for x, _ in parts]), "labels": np.concatenate([y for _, y in parts])}
        if len(parts) > 1 and regime.settings["partition"] == "domain":
            arrays["domains"] = np.concatenate([np.full(len(y), i) for i, (_, y) in enumerate(parts)])
            arrays["domain_names"] = np.array(regime.splits)
        np.savez(target, **arrays)
    return str(target)


def experiment_of(regime: Regime, method: str, seed: int, dataset: str) -> Experiment:
    """The experiment of one entry."""
    options, rounds = METHODS[method], regime.rounds
    if options["name"].startswith("fedl2g"):
        options, rounds = {**options, "warmup_rounds": regime.warmup}, rounds + regime.warmup
    settings = {**regime.settings, "dataset": dataset, "rounds": rounds, "patience": 0, "evaluate_every": 2}
    return Experiment(method=options, seed=seed, **settings)


def execute(experiment: Experiment) -> dict[str, Any]:
    """Run one experiment and return its entry."""
    from fedl2g.engines.inline import InlineEngine
    from fedl2g.federation import Federation
    from fedl2g.methods.registry import get_method
    from fedl2g.round.record import best_record

    started, setup = time.process_time(), prepare(experiment)
    method, engine = get_method(experiment.method.name), InlineEngine(setup)
    server = method.server(setup.experiment.method, setup.task)
    federation = Federation(setup.experiment, server, engine)
    federation.run()
    engine.close()
    best, last = best_record(federation.history), federation.history[-1]
    assert best is not None
    assert best.accuracy is not None
    assert last.accuracy is not None
    alignment = [record.metrics["alignment"] for record in federation.history if "alignment" in record.metrics]
    return {
        "best": round(best.accuracy.pooled, 5),
        "best_round": best.round,
        "last": round(last.accuracy.pooled, 5),
        "test_samples": [len(part) for part in setup.partition.test],
        "best_clients": _correct(best.accuracy.clients, setup),
        "last_clients": _correct(last.accuracy.clients, setup),
        "alignment": [round(alignment[i], 3) for i in (0, len(alignment) // 2, -1)] if alignment else [],
        "cpu_seconds": round(time.process_time() - started),
    }


def _correct(accuracies: dict[int, float], setup: Setup) -> list[int]:
    """Correct predictions of each client."""
    return [round(accuracies[client] * len(part)) for client, part in enumerate(setup.partition.test)]


def file_of(regime: Regime) -> Path:
    """The results of a regime."""
    return RESULTS / (
        regime.name.lower().replace(",", "").replace("(", "").replace(")", "").replace(" ", "-") + ".json"
    )


def read(regime: Regime) -> dict[str, Any]:
    """The stored results of a regime: its settings, and entries by "method | seed"."""
    path = file_of(regime)
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found
    return {"regime": regime.name, "settings": {}, "runs": {}}


def store(regime: Regime, key: str, entry: dict[str, Any]) -> None:
    """Add one entry to the file of a regime, one line per run."""
    found = read(regime)
    found["settings"] = {**regime.settings, "rounds": regime.rounds, "warmup_rounds": regime.warmup}
    found["runs"][key] = entry
    runs = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in found["runs"].items())
    head = ",\n".join(f" {json.dumps(k)}: {json.dumps(found[k])}" for k in ("regime", "settings"))
    write_text(file_of(regime), f'{{\n{head},\n "runs": {{\n{runs}\n }}\n}}\n')


def todo(regimes: list[Regime]) -> Iterator[tuple[Regime, str, int]]:
    """What has not been run yet, seed by seed."""
    for seed in range(max(regime.seeds for regime in regimes)):
        for regime in regimes:
            if seed < regime.seeds:
                done = read(regime)["runs"]
                yield from ((regime, m, seed) for m in regime.methods if f"{m} | {seed}" not in done)


def table(regimes: list[Regime], score: str) -> str:
    """Markdown: for each regime and method the accuracy, the mean paired difference to local, and whom it helped."""
    lines = []
    for regime in regimes:
        runs = read(regime)["runs"]
        seeds = [s for s in range(regime.seeds) if f"local | {s}" in runs]
        if not seeds:
            continue
        lines += ["", f"### {regime.name}", ""]
        lines += ["| method | accuracy % | against local, points | helped / same / harmed | worst client | seeds |"]
        lines += ["|---|---|---|---|---|---|"]
        for method in regime.methods:
            pairs = [(runs[f"{method} | {s}"], runs[f"local | {s}"]) for s in seeds if f"{method} | {s}" in runs]
            if pairs:
                lines.append(f"| {method} | {_cells(pairs, score, baseline=method == 'local')} |")
    return "\n".join(lines)


def _cells(pairs: list[tuple[dict[str, Any], dict[str, Any]]], score: str, *, baseline: bool) -> str:
    accuracy = f"{100 * statistics.fmean(own[score] for own, _ in pairs):.1f}"
    if baseline:
        return f"{accuracy} | - | - | - | {len(pairs)}"
    difference = 100 * statistics.fmean(own[score] - local[score] for own, local in pairs)
    changes = [
        (a - b) / n
        for own, local in pairs
        for a, b, n in zip(own[f"{score}_clients"], local[f"{score}_clients"], own["test_samples"], strict=True)
    ]
    counts = [sum(c > 0 for c in changes), sum(c == 0 for c in changes), sum(c < 0 for c in changes)]
    shown = " / ".join(map(str, counts))
    return f"{accuracy} | {difference:+.1f} | {shown} | {100 * min(changes):+.0f} | {len(pairs)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the packed image sets, with their reader load.py")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "fedl2g-when-it-helps")
    parser.add_argument("--only", default="", help="regimes whose name contains this text")
    parser.add_argument("--seeds", type=int, help="at most this many seeds")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--table", action="store_true", help="print the table and run nothing")
    parser.add_argument("--score", choices=("last", "best"), default="last", help="last round, or best on test data")
    options = parser.parse_args()
    regimes = [regime for regime in REGIMES if options.only.lower() in regime.name.lower()]
    if options.table:
        print(table(regimes, options.score))
        return
    options.work.mkdir(parents=True, exist_ok=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    missing = [one for one in todo(regimes) if options.seeds is None or one[2] < options.seeds]
    datasets = {regime.name: unpack(regime, options.data, options.work) for regime, _, _ in missing}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, spawn, initializer=_one_thread) as pool:
        started = {pool.submit(execute, experiment_of(r, m, s, datasets[r.name])): (r, m, s) for r, m, s in missing}
        for done in as_completed(started):
            regime, method, seed = started[done]
            entry = done.result()
            store(regime, f"{method} | {seed}", entry)
            print(f"{regime.name} | {method} | {seed}: {entry['last']} ({entry['cpu_seconds']} s)", flush=True)


def _one_thread() -> None:
    import torch

    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    torch.set_num_threads(1)


if __name__ == "__main__":
    main()
