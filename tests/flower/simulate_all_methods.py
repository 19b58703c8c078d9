"""Every method inline and on the simulated nodes, with each setting that crosses the package.

The processes are shared by all runs. Prints what differs as JSON; run by a test.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import safetensors.torch

from compared import PAIRS
from compared import experiment as compared_experiment
from endings import StopAfter
from fedl2g.engines.flower import require_flower
from fedl2g.errors import FedL2GError
from fedl2g.experiment import Experiment
from fedl2g.federation import Federation, Observer
from fedl2g.methods.registry import method_names
from fedl2g.round.record import RoundRecord
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.execute import Interrupted
from fedl2g.runs.observers import StopOnInterrupt
from fedl2g.runs.runner import resume, run

CLIENTS = 4
# Settings that the engine's clients and the round loop must carry out alike wherever the clients live.
WORLDS: dict[str, dict[str, Any]] = {
    "unstable": {
        "availability": {
            "dropout_before": 0.2, "dropout_after": 0.2, "speed_spread": 1.0, "deadline": 1.0, "late": "use",
        },
        "attack": {"share": 0.25, "kind": "noise", "strength": 3.0},
        "noise": {"std": 0.05, "coefficient": 0.1, "scale": "relative"},
        "aggregation": {"rule": "trimmed_mean", "trim": 0.25},
        "rounds": 4,
        "participation": 1.0,
    },
    "options of FedL2G": {
        "method": {
            "name": "fedl2g-l", "warmup_rounds": 1,
            "quiz": "rotating", "guide_weight": "adaptive", "server_step": "rms",
        },
        "rounds": 4,
    },
    "private, client": {"privacy": {"clip": 1.0, "noise_multiplier": 1.0, "noise": "client"}},
    "private, server": {"privacy": {"clip": 1.0, "noise_multiplier": 1.0, "noise": "server"}},
}  # fmt: skip
TIMES = ("client_seconds", "server_seconds", "evaluation_seconds")


class KillProcess(Observer):
    """Kills one of the processes that serve the nodes, after a round."""

    def on_round(self, federation: Federation, record: RoundRecord) -> None:
        if record.round == 1:
            engine: Any = federation.engine
            os.kill(engine.simulation.grid.pids[0], signal.SIGKILL)


def experiment(method: str, engine: str, /, **more: Any) -> Experiment:
    settings: dict[str, Any] = {"name": method}
    if method.startswith("fedl2g"):
        settings["warmup_rounds"] = 1  # one round without training, one with
    if method in ("fedtgp", "fedgen"):
        settings["server_epochs"] = 2
    common: dict[str, Any] = {
        "method": settings, "dataset": "digits", "samples": 240, "clients": CLIENTS, "rounds": 2, "seed": 3,
        "partition": "dirichlet:0.5", "participation": 0.75,
        "execution": {"engine": engine, "checkpoint_every": 1, "workers": 2},
    }  # fmt: skip
    return Experiment(**{**common, **more})


def outcome(path: Path) -> dict[str, Any]:
    """All numbers of a run: its records without times, and every tensor of its last checkpoint."""
    records = [{k: v for k, v in r.to_dict().items() if k not in TIMES} for r in RunDirectory.open(path).history()]
    tensors = {}
    for file in sorted(max((path / "checkpoints").glob("round-*")).glob("*.safetensors")):
        for name, tensor in safetensors.torch.load_file(file).items():
            tensors[f"{file.name}/{name}"] = tensor.numpy().tobytes()
    return {"records": records, "tensors": tensors}


def differences(path: Path, reference: Path) -> list[str]:
    ours, theirs = outcome(path), outcome(reference)
    found = [f"record {a['round']}" for a, b in zip(ours["records"], theirs["records"], strict=True) if a != b]
    names = ours["tensors"].keys() | theirs["tensors"].keys()
    return found + sorted(n for n in names if ours["tensors"].get(n) != theirs["tensors"].get(n))


def happenings(path: Path) -> list[str]:
    """What befell the clients of a run, as words of its records."""
    records = [record.to_dict() for record in RunDirectory.open(path).history()]
    reasons = {reason for record in records for reason in record["missing"].values()}
    return sorted(reasons | {word for word in ("late", "hostile") for record in records if record[word]})


def main(out: Path) -> None:
    require_flower()
    from fedl2g.engines.processes import WorkerPool, shared_workers

    found: dict[str, list[str]] = {}
    for method in method_names():
        run(experiment(method, "inline"), out / f"{method}-inline")
    for world, settings in WORLDS.items():
        run(experiment("feddistill", "inline", **settings), out / f"{world}-inline")
    pool = WorkerPool()
    with shared_workers(pool):
        for method in method_names():
            run(experiment(method, "flower"), out / f"{method}-flower")
            found[method] = differences(out / f"{method}-flower", out / f"{method}-inline")
        for world, settings in WORLDS.items():
            run(experiment("feddistill", "flower", **settings), out / f"{world}-flower")
            found[world] = differences(out / f"{world}-flower", out / f"{world}-inline")
        for method, setting in PAIRS:
            name = f"{method}, {setting}"
            for engine in ("inline", "flower"):
                run(compared_experiment(method, setting, engine), out / f"{name}-{engine}")
            found[name] = differences(out / f"{name}-flower", out / f"{name}-inline")
        found["seen"] = happenings(out / "unstable-flower")
        for first, second in (("flower", "inline"), ("inline", "flower")):
            path = out / f"{first}-then-{second}"
            try:
                run(experiment("fedmrl", first), path, [StopAfter(1, StopOnInterrupt.REASON)])
            except Interrupted:
                resume(path, execution={"engine": second})
            found[path.name] = differences(path, out / "fedmrl-inline")
        try:
            run(experiment("fedproto", "flower"), out / "killed", [KillProcess()])
            found["killed process"] = differences(out / "killed", out / "fedproto-inline")
        except FedL2GError as error:  # must not hide what all the others found
            found["killed process"] = [str(error)]
    pool.close()
    sys.stdout.write("RESULT " + json.dumps(found) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
