"""Shared by the tests of speed and scale: caches of their own, one thread, tiny federations."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fedl2g.data import load_dataset, make_partition
from fedl2g.engines.host import Site
from fedl2g.experiment import Experiment

TINY: dict[str, Any] = {
    "method": {"name": "fedl2g-f", "warmup_rounds": 0},
    "samples": 160,
    "image_size": 16,
    "partition": "iid",
    "models": "small_cnn,small_resnet",
    "clients": 5,
    "participation": 0.6,
    "rounds": 3,
}


@pytest.fixture(scope="session", autouse=True)
def _own_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "fedl2g-caches"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDL2G_DATA", str(folder / "datasets"))
        patch.setenv("FEDL2G_CACHE", str(folder))
        yield


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tiny() -> Any:
    """Makes a federation of five clients on 160 digits."""

    def make(**settings: Any) -> Experiment:
        return Experiment(**{**TINY, **settings})

    return make


@pytest.fixture(scope="session")
def site_of() -> Any:
    """The data and partition of an experiment, as a run makes them."""

    def make(experiment: Experiment) -> Site:
        dataset = load_dataset(experiment.dataset, samples=experiment.samples, image_size=experiment.image_size)
        partition = make_partition(
            experiment.partition,
            dataset.labels,
            dataset.domains,
            clients=experiment.clients,
            classes=dataset.classes,
            seed=experiment.seed,
        )
        return Site(experiment, dataset, partition)

    return make
