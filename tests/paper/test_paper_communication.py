"""Communication at the paper's full size, counted from the payloads of real rounds, beside the paper's table.

What crosses depends on the classes each client holds, the width of features and heads and the auxiliary model, not on
how many images there are. So the paper's own split of Cifar100 (20 clients, beta 0.1, seed 1) keeps every client's
classes here, but only one noise image of each; all clients have the group's first network, which is the auxiliary one.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import fedl2g
from fedl2g.datasets import make_partition
from fedl2g.learning.client import Task
from fedl2g.methods.low_rank import compress
from fedl2g.methods.shared_network import SharedNetwork
from fedl2g.paper.catalog import paper_experiment
from fedl2g.payload import nbytes
from fedl2g.schema import image_schema

CLIENTS, CLASSES = 20, 100


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("communication")
    labels = np.repeat(np.arange(CLASSES), 600)
    split = make_partition("dirichlet:0.1", labels, None, clients=CLIENTS, classes=CLASSES, seed=1)
    assert split.sizes.tolist()[:3] == [3020, 3053, 2753]  # the paper's own
    kept: list[int] = []
    sides: dict[str, list[list[int]]] = {"train": [], "test": []}
    for train in split.train:
        held = np.unique(labels[train]).tolist()
        sides["train"].append(list(range(len(kept), len(kept) + len(held))))
        kept += held
        sides["test"].append(list(range(len(kept), len(kept) + 2)))
        kept += held[:2]
    images = np.random.default_rng(0).integers(0, 256, (len(kept), 32, 32, 3), dtype=np.uint8)
    names = np.array([f"class {k:03d}" for k in range(CLASSES)])
    np.savez(folder / "images.npz", images=images, labels=np.array(kept), class_names=names)
    (folder / "split.json").write_text(json.dumps(sides))
    return {
        "dataset": str(folder / "images.npz"),
        "partition": f"file:{folder / 'split.json'}",
        "models": "cnn4",
        "clients": CLIENTS,
        "rounds": 2,  # prototypes come down from the second round on
        "evaluate_every": 10,
        "batch_size": 100,  # one step over all that a client holds
    }


def measured(settings: dict[str, object], method: str, folder: Path) -> tuple[float, float]:
    own = {"name": method, "warmup_rounds": 0} if method.startswith("fedl2g") else method
    batch = {"batch_size": 10} if method.startswith("fedl2g") else {}
    fedl2g.run(fedl2g.Experiment(**{**settings, **batch, "method": own}), folder)
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    return last["up_bytes"] / 2**20, last["down_bytes"] / 2**20


def printed(method: str) -> tuple[float, float]:
    row = paper_experiment("cost").numbers[method]
    return row["up_mb"], row["down_mb"]


@pytest.mark.parametrize(
    "method", ["lg-fedavg", "fedgh", pytest.param("fml", marks=pytest.mark.slow), "feddistill", "fedproto"]
)
def test_agrees_with_the_paper_within_three_percent(method: str, settings: dict[str, object], tmp_path: Path) -> None:
    assert measured(settings, method, tmp_path / "run") == pytest.approx(printed(method), rel=0.03)


@pytest.mark.parametrize(
    ("method", "up"), [("fedl2g-l", 0.057), pytest.param("fedl2g-f", 0.29, marks=pytest.mark.slow)]
)
def test_fedl2g_sends_fewer_rows_up_than_the_paper_says(
    method: str, up: float, settings: dict[str, object], tmp_path: Path
) -> None:
    ours = measured(settings, method, tmp_path / "run")
    assert ours[1] == pytest.approx(printed(method)[1], rel=0.03)
    # At most one row for each of the 10 samples of a study batch; with one sample of each class it is exactly 10.
    rows = CLIENTS * 10
    width = CLASSES if method == "fedl2g-l" else 512
    assert ours[0] == rows * (width * 4 + 8) / 2**20
    assert up * 0.7 < ours[0] < printed(method)[0] / 3


@pytest.mark.slow
def test_fedmrl_sends_a_smaller_auxiliary_model_than_the_paper_says(
    settings: dict[str, object], tmp_path: Path
) -> None:
    up, down = measured(settings, "fedmrl", tmp_path / "run")
    assert up == down == pytest.approx(67.6, rel=0.005)
    assert up < 0.97 * printed("fedmrl")[0]


@pytest.mark.slow
def test_fedkd_starts_with_nearly_the_whole_model_and_meets_the_paper_at_rank_341(
    settings: dict[str, object], tmp_path: Path
) -> None:
    whole = measured(settings, "fml", tmp_path / "fml")[0]
    up, down = measured(settings, "fedkd", tmp_path / "fedkd")
    assert 0.99 * whole < up <= whole
    assert 0.99 * whole < down <= whole

    auxiliary = Task(CLASSES, image_schema(3, 32, 32), seed=1, rounds=1000, auxiliary="cnn4").build_auxiliary()
    weights = SharedNetwork(auxiliary).pack()
    largest = max(weights, key=lambda name: weights[name].numel())
    u, s, v = torch.linalg.svd(weights[largest], full_matrices=False)
    s = torch.where(torch.arange(len(s)) < 341, 1.0, 0.0)  # all the energy in 341 directions, evenly
    weights[largest] = u * s @ v
    assert weights[largest].shape == (512, 1600)
    assert CLIENTS * nbytes(compress(weights, 0.999)) / 2**20 == pytest.approx(printed("fedkd")[0], rel=0.03)
