"""All methods on one set of real data, with the statistics of `fedl2g compare`: the runs of docs/results.md.

    python benchmarks/all_methods.py cifar100 cifar100.npz --out runs/cifar100
    python benchmarks/all_methods.py --table docs/results/cifar100.json     # the table of the page

The file holds the arrays of docs/how-to-data.md. Every method trains for the same number of rounds; FedL2G's warm-up
rounds, in which no client trains, come on top, which `fedl2g compare` alone cannot do. The score is the accuracy after
the last round: nothing is chosen on test data. Finished runs are not repeated, and comparison.json is written after
each seed, so that the study can be interrupted at any time.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from fedl2g.experiment import Experiment
from fedl2g.methods.registry import method_names
from fedl2g.runs.comparing import run_comparison
from fedl2g.runs.comparison import Comparison

SETS: dict[str, dict[str, Any]] = {
    "cifar100": {"partition": "dirichlet:0.1", "models": "small", "clients": 20, "samples": 2000, "rounds": 8},
    "pacs": {"partition": "domain", "models": "small", "clients": 20, "samples": 2000, "image_size": 32, "rounds": 8},
    "ag_news": {"partition": "dirichlet:0.1", "models": "text", "clients": 8, "samples": 1200, "rounds": 6},
    "japanese_vowels": {"partition": "dirichlet:0.5", "models": "sensor", "clients": 8, "rounds": 10},
}
WARMUP = 3


def comparison(name: str, file: Path, out: Path, seeds: int, methods: list[str]) -> Comparison:
    """Every method with every seed, seed by seed."""
    experiments, labels = {}, {}
    for seed in range(seeds):
        for method in methods:
            settings, options = dict(SETS[name]), {"name": method}
            if method.startswith("fedl2g"):
                settings["rounds"] += WARMUP
                options["warmup_rounds"] = WARMUP
            path = out / f"{method}-s{seed}"
            labels[path] = method
            experiments[path] = Experiment(
                method=options,
                dataset=str(file),
                seed=seed,
                patience=0,
                evaluate_every=settings["rounds"],
                execution={"keep_best": False, "checkpoint_every": 1000},
                **settings,
            )
    return Comparison(out, experiments, labels, "local")


def table(found: dict[str, Any]) -> str:
    """The Markdown table of one comparison: the best method first, each against local training."""
    verdicts = {one["method"]: one for one in found["verdicts"]}
    lines = ["| method | accuracy % | points against local | gain / same / lose | Holm's p | MB up / down a round |"]
    lines.append("|---" * 6 + "|")
    by_accuracy = sorted(found["methods"].items(), key=lambda item: -item[1]["best_accuracy"]["mean"])
    for method, one in by_accuracy:
        runs = one["runs"]
        mean, std = (one["best_accuracy"][key] for key in ("mean", "std"))
        accuracy = f"{100 * mean:.1f}" + ("" if std is None else f" ± {100 * std:.1f}")
        up, down = (sum(run[key] for run in runs) / len(runs) for key in ("up_mb_per_round", "down_mb_per_round"))
        against = ["", "", ""]
        if method in verdicts:
            found_one = verdicts[method]
            interval = f"{100 * found_one['low']:+.1f}, {100 * found_one['high']:+.1f}"
            against[0] = f"{100 * found_one['difference']:+.1f} [{interval}]"
            if found_one["verdict"] != "no clear difference":
                against[0] = f"**{against[0]}**"
            against[1] = f"{found_one['gain']} / {found_one['unchanged']} / {found_one['lose']}"
            against[2] = f"{found_one['p_holm']:.3f}"
        lines.append(f"| {method} | {accuracy} | {' | '.join(against)} | {up:.3f} / {down:.3f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", nargs="?", choices=tuple(SETS))
    parser.add_argument("file", nargs="?", type=Path, help="the data, as an .npz file")
    parser.add_argument("--out", type=Path, default=Path("runs/all-methods"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--table", type=Path, metavar="COMPARISON", help="print the table of a comparison.json")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.table.read_text(encoding="utf-8"))))
        return
    methods = list(method_names())
    data = None
    for seeds in range(1, options.seeds + 1):
        planned = comparison(options.set, options.file, options.out, seeds, methods)
        data = run_comparison(planned, Console(stderr=True), jobs=options.jobs, data=data)
        planned.write()
        planned.check()


if __name__ == "__main__":
    main()
