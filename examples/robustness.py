"""Two studies: the cost of drop-out for each method, and the effect of attackers under each aggregation rule.

    python examples/robustness.py dropout --dataset cifar100
    python examples/robustness.py attack --dataset cifar100

Finished runs are not repeated, so an interrupted study can be continued. The tables are Markdown; every number is the
mean over the last five rounds. In `attack` it is the accuracy of the clients that are honest at every share of
attackers, so that all columns are about the same clients.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

from fedl2g import load_dataset
from fedl2g.errors import FedL2GError
from fedl2g.experiment.policies import Attack
from fedl2g.runs.batch import run_all
from fedl2g.runs.comparison import Comparison
from fedl2g.runs.directory import RunDirectory
from fedl2g.uploads.attack import hostile_clients

DROPOUT = (0, 0.1, 0.3, 0.5)
SHARES = (0, 0.1, 0.2, 0.3)
RULES = ("mean", "median", "trimmed_mean", "norm_clip")
EVERY_METHOD = (
    "local", "lg-fedavg", "fedgh", "fml", "fedkd", "fedmrl", "feddistill", "fedproto",
    "fedl2g-l:warmup_rounds=5", "fedl2g-f:warmup_rounds=5",
)  # fmt: skip
ATTACKED = ("lg-fedavg", "feddistill", "fedproto", "fedl2g-f:warmup_rounds=5")
LAST = 5  # number of rounds averaged


def study(options: argparse.Namespace, name: str, settings: dict[str, object], methods: tuple[str, ...]) -> Comparison:
    """Run every method and seed under these settings."""
    common = {
        "dataset": options.dataset,
        "samples": options.samples,
        "partition": "dirichlet:0.1",
        "models": "small",
        "clients": 20,
        "rounds": options.rounds,
        "patience": 0,
        "layout": "channels_last",
        "execution.checkpoint_every": options.rounds,
    }
    plan = Comparison.plan(None, common | settings, methods, options.seeds, options.out / name)
    for path, result in run_all(plan.experiments, jobs=options.jobs):
        print(f"{name}: {plan.labels[path]}, seed {result.seed}: {result.status}", flush=True)
    return plan


def accuracies(plan: Comparison, *, honest: bool) -> dict[str, list[float]]:
    """Per method, for each seed: the accuracy in percent over the last rounds, of all clients or the honest ones."""
    found: dict[str, list[float]] = {}
    for path, label in plan.labels.items():
        run, experiment = RunDirectory(path), plan.experiments[path]
        hostile = hostile_clients(Attack(share=max(SHARES)), experiment.clients, experiment.seed) if honest else ()
        sizes = {client: len(test) for client, test in enumerate(run.partition().test) if client not in hostile}
        last = [record.accuracy.clients for record in run.history()[-LAST:]]
        pooled = [sum(size * clients[c] for c, size in sizes.items()) / sum(sizes.values()) for clients in last]
        found.setdefault(label.partition(":")[0], []).append(100 * statistics.fmean(pooled))
    return found


def cell(values: list[float]) -> str:
    """The mean and, for several seeds, the standard deviation."""
    mean = f"{statistics.fmean(values):.1f}"
    return f"{mean} ± {statistics.stdev(values):.1f}" if len(values) > 1 else mean


def table(found: dict[str, dict[str, list[float]]], first: str) -> None:
    """Print a Markdown table; the keys of `found` are the columns."""
    print(f"\n| {first} | " + " | ".join(found) + " |\n|---" + "|---" * len(found) + "|")
    for row in next(iter(found.values())):
        print(f"| {row} | " + " | ".join(cell(column[row]) for column in found.values()) + " |")


def main() -> None:
    """Parse the command line and run the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=("dropout", "attack"))
    parser.add_argument("--dataset", default="digits", help="name, .npz file or folder of images")
    parser.add_argument("--samples", type=int, help="use only this many images")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--kind", default="sign_flip", help="what attackers do")
    parser.add_argument("--strength", type=float, default=3.0, help="how strongly they do it")
    parser.add_argument("--out", type=Path, default=Path("runs/robustness"))
    options = parser.parse_args()
    try:
        report(options)
    except FedL2GError as error:
        print(f"robustness.py: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None


def report(options: argparse.Namespace) -> None:
    """Run the study, print its table and write its numbers beside the runs."""
    load_dataset(options.dataset, samples=options.samples)  # fail before the first run if it cannot be loaded
    found: dict[str, dict[str, list[float]]] = {}
    if options.study == "dropout":
        for chance in DROPOUT:
            plan = study(options, f"dropout-{chance}", {"availability.dropout_before": chance}, EVERY_METHOD)
            found[f"{chance:.0%}"] = accuracies(plan, honest=False)
        table(found, "drop-out")
    else:
        attack = {"attack.kind": options.kind, "attack.strength": options.strength}
        for rule in RULES:
            for share in SHARES:
                settings = {"attack.share": share, "aggregation.rule": rule, **attack}
                plan = study(options, f"attack-{share}-{rule}", settings, ATTACKED)
                for method, values in accuracies(plan, honest=True).items():
                    found.setdefault(f"{share:.0%}", {})[f"{method}, {rule}"] = values
        table({share: dict(sorted(rows.items())) for share, rows in found.items()}, "attackers")
    numbers = options.out / f"{options.study}.json"
    numbers.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"\nnumbers: {numbers}")


if __name__ == "__main__":
    main()
