"""Runs every shell command of docs/tutorial-hospitals.md in order, then the same federation inline. Run by a test."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial-hospitals.md"
PATIENCE = float(os.environ.get("FEDL2G_TUTORIAL_SECONDS", "240"))  # for each thing that is waited for
SITES = ("north", "south", "east")
TIMES = ("client_seconds", "server_seconds", "evaluation_seconds")


def commands() -> list[str]:
    """The lines of the tutorial's `sh` blocks."""
    blocks = re.findall(r"```sh\n(.*?)```", TUTORIAL.read_text(encoding="utf-8"), re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def wait(what: str, ready: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not ready():
        if time.monotonic() > end:
            raise SystemExit(f"waited {PATIENCE} s in vain: {what}")
        time.sleep(0.25)


def listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


class Tutorial:
    """The tutorial in a folder, and the processes it leaves in the background."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.background: list[subprocess.Popen[bytes]] = []

    def follow(self) -> None:
        for line in commands():
            started = time.monotonic()
            if line.startswith("cd "):
                self.folder /= line.removeprefix("cd ")
            elif line.endswith("&"):
                self.start(line.removesuffix("&"))
                if "superlink" in line:
                    wait("the SuperLink listens", lambda: listening(8443))
            else:
                done = subprocess.run(["sh", "-c", line], cwd=self.folder, capture_output=True, text=True)
                sys.stderr.write(f"$ {line}  ({time.monotonic() - started:.1f} s)\n{done.stdout}{done.stderr}\n")
                if done.returncode:
                    raise SystemExit(f"exit code {done.returncode}: {line}")
            if "run.sh" in line:
                wait("the run is over", (self.folder / "coordinator" / "run" / "result.json").is_file)
                sys.stderr.write(f"the run took {time.monotonic() - started:.1f} s\n")

    def start(self, line: str) -> None:
        self.background.append(subprocess.Popen(["sh", "-c", line], cwd=self.folder, start_new_session=True))

    def close(self) -> None:
        for process in self.background:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in self.background:
            process.wait()


def inline_twin(folder: Path) -> Path:
    """The same federation in one process: the sites' pictures side by side, each site's own split, its own network."""
    import numpy as np

    from fedl2g.data import Partition
    from fedl2g.deploy.coordinator import read_coordinator
    from fedl2g.deploy.own_site import load_data, own_site
    from fedl2g.deploy.site_file import read_site
    from fedl2g.experiment import Experiment
    from fedl2g.runs.runner import run

    coordinator = read_coordinator(folder / "coordinator" / "experiment.toml")
    table = coordinator.federation
    images, labels, models, train, test = [], [], [], [], []
    for number, name in enumerate(table.sites):
        file = read_site(folder / "sites" / name / "site.toml")
        dataset = load_data(file, table.classes, table.image_shape)
        part = own_site(file, coordinator.experiment, dataset).partition
        offset = sum(map(len, labels))
        train.append(part.train[number] + offset)
        test.append(part.test[number] + offset)
        images.append(dataset.images.transpose(0, 2, 3, 1))
        labels.append(dataset.labels)
        models.append(file.model)
    np.savez(
        folder / "twin.npz", images=np.concatenate(images), labels=np.concatenate(labels),
        class_names=np.array(table.classes),
    )  # fmt: skip
    (folder / "twin.json").write_text(Partition(tuple(train), tuple(test)).to_json())
    settings = coordinator.experiment.model_dump(mode="json", exclude={"execution", "dataset", "partition", "models"})
    experiment = Experiment(
        **settings, dataset=str(folder / "twin.npz"), partition=f"file:{folder / 'twin.json'}", models=",".join(models)
    )
    run(experiment, folder / "twin")
    return folder / "twin"


def compare(folder: Path) -> dict[str, Any]:
    """What differs between the deployment and its inline twin: records, server state, every site's model."""
    import safetensors.torch
    import torch

    from fedl2g.engines.flower.store_files import newest_generation, run_of_site
    from fedl2g.runs.directory import RunDirectory

    twin = inline_twin(folder)
    real = folder / "coordinator" / "run"
    records = [
        [{k: v for k, v in r.to_dict().items() if k not in TIMES} for r in RunDirectory.open(path).history()]
        for path in (real, twin)
    ]
    differences = [f"record {a['round']}: {a} != {b}" for a, b in zip(*records, strict=True) if a != b]
    last = f"checkpoints/round-{records[0][-1]['round']:06d}"
    servers = [safetensors.torch.load_file(path / last / "server.safetensors") for path in (real, twin)]
    differences += [f"server {name}" for name in servers[1] if not torch.equal(servers[0][name], servers[1][name])]
    for number, name in enumerate(SITES):
        _, tensors, _ = newest_generation(run_of_site(folder / "sites" / name / "store", number, None))
        expected = safetensors.torch.load_file(twin / last / f"client-{number:06d}.safetensors")
        differences += [f"{name} {k}" for k, t in expected.items() if not torch.equal(tensors[f"state/{k}"], t)]
    leaked = sorted(str(path) for path in real.rglob("client-*.safetensors"))
    predictions = {}
    for name in SITES:
        model = torch.jit.load(folder / "sites" / name / "model" / "model.torchscript")
        predictions[name] = list(model(torch.zeros(5, 3, 16, 16)).shape)
    return {"differences": differences, "models at the coordinator": leaked, "predictions": predictions}


def main(out: Path) -> None:
    tutorial = Tutorial(out)
    try:
        tutorial.follow()
        found = compare(tutorial.folder)
    finally:
        tutorial.close()
    sys.path.insert(0, str(tutorial.folder))
    sys.stdout.write("RESULT " + json.dumps(found) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
