"""Data of each kind gives the same bits with all clients in memory, with one at a time, and on two workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_helpers import bits, federation_of, inline

from fedl2g.engines.base import open_engine
from fedl2g.experiment import Experiment
from fedl2g.setup import prepare

pytestmark = pytest.mark.usefixtures("kept_workers")

COUNT = 40
ARRAYS: dict[str, Any] = {
    "signal": np.random.default_rng(0).normal(size=(COUNT, 2, 12)),
    "table": np.where(
        np.arange(3 * COUNT).reshape(COUNT, 3) % 7 == 0, np.nan, np.arange(3.0 * COUNT).reshape(COUNT, 3)
    ),
    "text": np.array([f"word{n % 5} and {'more ' * (n % 3)}" for n in range(COUNT)]),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_a_kind_is_the_same_wherever_clients_live(kind: str, tmp_path: Path) -> None:
    labels = np.array(["no", "yes"])[np.arange(COUNT) % 2]
    np.savez(tmp_path / "data.npz", inputs=ARRAYS[kind], labels=labels)
    group = {"signal": "sensor_resnet,sensor_gru", "table": "table_deep,table_resnet", "text": "text_gru,text_cnn"}[
        kind
    ]
    found = []
    for engine in ("inline", "evicting", "workers"):
        experiment = Experiment(
            method={"name": "fedl2g-f", "warmup_rounds": 1}, dataset=str(tmp_path / "data.npz"), models=group, rounds=3,
            partition="iid", clients=2, feature_dim=48,
            execution={"engine": "workers" if engine == "workers" else "inline"},
        )  # fmt: skip
        setup = prepare(experiment)
        opened = inline(setup, 1, tmp_path / "scratch") if engine == "evicting" else open_engine(setup)
        federation = federation_of(setup, opened)
        try:
            federation.run()
            found.append(bits(federation, tmp_path / engine))
        finally:
            opened.close()
    assert found[0]["clients"]
    assert found[0] == found[1] == found[2]
