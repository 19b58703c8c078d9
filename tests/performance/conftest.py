"""Shared by the tests of speed and scale: tiny federations."""

from __future__ import annotations

from typing import Any

import pytest

from fedl2g.data import load_dataset, make_partition
from fedl2g.experiment import Experiment
from fedl2g.setup import Setup

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


@pytest.fixture(scope="session")
def tiny() -> Any:
    """Makes a federation of five clients on 160 digits."""

    def make(**settings: Any) -> Experiment:
        return Experiment(**{**TINY, **settings})

    return make


@pytest.fixture(scope="session")
def site_of() -> Any:
    """The data and partition of an experiment, as a run makes them."""

    def make(experiment: Experiment) -> Setup:
        dataset = load_dataset(experiment.dataset, samples=experiment.samples, image_size=experiment.image_size)
        partition = make_partition(
            experiment.partition,
            dataset.labels,
            dataset.domains,
            clients=experiment.clients,
            classes=dataset.classes,
            seed=experiment.seed,
        )
        return Setup(experiment, dataset, partition)

    return make
