"""Shared by the tests of speed and scale: tiny federations."""

from __future__ import annotations

from typing import Any

import pytest

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


@pytest.fixture(scope="session")
def tiny() -> Any:
    """Makes a federation of five clients on 160 digits."""

    def make(**settings: Any) -> Experiment:
        return Experiment(**{**TINY, **settings})

    return make
