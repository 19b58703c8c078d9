"""A deployed federation once more in one process, and what differs. A script: the sites' code is imported by it.

python inline_twin.py FOLDER EXPERIMENT RUN [MISSED]    MISSED is JSON: round -> client -> why its reply was not used
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from fedl2g.datasets import Partition, load_dataset
from fedl2g.deploy.coordinator import read_coordinator
from fedl2g.deploy.own_site import load_data, own_site
from fedl2g.deploy.site_file import read_site
from fedl2g.engines.base import Absent, Check
from fedl2g.engines.flower.store import client_folder, stored_model
from fedl2g.engines.inline import InlineEngine
from fedl2g.engines.states import client_file, read_state
from fedl2g.experiment import Experiment
from fedl2g.methods.base import Reply
from fedl2g.payload import Payload
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.runner import run_site
from fedl2g.setup import Setup

TIMES = ("client_seconds", "server_seconds", "evaluation_seconds")
Missed = dict[str, dict[str, str]]


class LossyEngine(InlineEngine):
    """Clients train, but the replies of some rounds are lost."""

    def __init__(self, setup: Setup, scratch: Path | None, missed: Missed) -> None:
        super().__init__(setup, scratch)
        self.missed = missed

    def train(  # type: ignore[override]  # the engine it extends never loses a reply
        self, round: int, clients: Sequence[int], payload: Payload, check: Check
    ) -> Iterator[Reply | Absent]:
        lost = self.missed.get(str(round), {})
        for answer in super().train(round, clients, payload, check):
            reason = lost.get(str(answer.client))
            yield answer if reason is None else Absent(answer.client, reason)


def inline_twin(folder: Path, experiment_file: Path, out: Path, missed: Missed) -> None:
    """The same federation in one process: the sites' pictures side by side, each site's own split, its own network."""
    coordinator = read_coordinator(experiment_file)
    table = coordinator.federation
    images, labels, models, train, test = [], [], [], [], []
    for number, name in enumerate(table.sites):
        file = read_site(folder / "sites" / name / "site.toml", trust=True)
        dataset = load_data(file, table.classes, table.inputs)
        part = own_site(file, coordinator.experiment, dataset).partition
        offset = sum(map(len, labels))
        train.append(part.train[number] + offset)
        test.append(part.test[number] + offset)
        images.append(dataset.inputs.transpose(0, 2, 3, 1))
        labels.append(dataset.labels)
        models.append(file.model)
    out.mkdir(parents=True)
    np.savez(
        out / "data.npz", images=np.concatenate(images), labels=np.concatenate(labels),
        class_names=np.array(table.classes),
    )  # fmt: skip
    settings = coordinator.experiment.model_dump(mode="json", exclude={"execution", "dataset", "partition", "models"})
    experiment = Experiment(
        **settings, dataset=str(out / "data.npz"), models=",".join(models), execution={"checkpoint_every": 1}
    )
    setup = Setup(experiment, load_dataset(experiment.dataset), Partition(tuple(train), tuple(test)))
    run_site(setup, out / "run", lambda setup, scratch: LossyEngine(setup, scratch, missed))


def differences(folder: Path, experiment_file: Path, real: Path, twin: Path) -> list[str]:
    """What differs: records, server state, every site's model, models that left their sites."""
    sites = read_coordinator(experiment_file).federation.sites
    records = [
        [
            {k: v for k, v in r.to_dict().items() if k not in TIMES}
            for r in RunDirectory.open(path, trust=True).history()
        ]
        for path in (real, twin)
    ]
    found = [f"record {a['round']}: {a} != {b}" for a, b in zip(*records, strict=True) if a != b]
    last = f"checkpoints/round-{records[0][-1]['round']:06d}"
    servers = [safetensors.torch.load_file(path / last / "server.safetensors") for path in (real, twin)]
    found += [f"server {name}" for name in servers[1] if not torch.equal(servers[0][name], servers[1][name])]
    run: str = json.loads((real / last / "nodes.json").read_text())["run"]
    for number, name in enumerate(sites):
        state = stored_model(client_folder(folder / "sites" / name / "store", run, number), "last").state
        expected = read_state(client_file(twin / last, number))
        found += [f"{name} {k}" for k, t in expected.items() if not torch.equal(state[k], t)]
        kept = client_file(twin / last / "best", number)
        if kept.exists():
            best = stored_model(client_folder(folder / "sites" / name / "store", run, number), "best").state
            found += [f"{name}, best: {k}" for k, t in read_state(kept).items() if not torch.equal(best[k], t)]
    return found + [f"{path} left its site" for path in sorted(real.rglob("client-*.safetensors"))]


def main(folder: Path, experiment: Path, real: Path, missed: Missed) -> list[str]:
    twin = real.with_name(real.name + "-inline")
    inline_twin(folder, experiment, twin, missed)
    return differences(folder, experiment, real, twin / "run")


if __name__ == "__main__":
    paths: Any = [Path(text).resolve() for text in sys.argv[1:4]]
    lost: Missed = json.loads(sys.argv[4]) if len(sys.argv) > 4 else {}
    sys.stdout.write("RESULT " + json.dumps(main(*paths, lost)) + "\n")
