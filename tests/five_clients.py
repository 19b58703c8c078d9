"""A federation of five clients with two networks, for tests of engines and of speed."""

from __future__ import annotations

from typing import Any

from fedl2g.experiment import Experiment


def tiny(**settings: Any) -> Experiment:
    """Five clients on 160 digits."""
    given: dict[str, Any] = {
        "method": {"name": "fedl2g-f", "warmup_rounds": 0},
        "samples": 160,
        "image_size": 16,
        "partition": "iid",
        "models": "small_cnn,small_resnet",
        "clients": 5,
        "participation": 0.6,
        "rounds": 3,
    }
    return Experiment(**{**given, **settings})
