"""The leakage probe: certain where rows are sent for the own classes alone, a guess where noise hides them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedl2g.errors import SettingError
from fedl2g.experiment import Experiment
from fedl2g.privacy.probe import _areas, probe

TINY: dict[str, Any] = {
    "samples": 200,
    "image_size": 16,
    "partition": "pathological:4",
    "models": "small_cnn",
    "clients": 5,
    "rounds": 3,
    "evaluate_every": 3,
}


def test_areas_by_hand() -> None:
    has = np.array([[True, True, False, False], [True] * 4])
    seen = [(0, np.array([3.0, 1.0, 2.0, 0.0])), (0, np.array([1.0, 4.0, 1.0, 0.0])), (1, np.zeros(4))]
    one, together = _areas(seen, has)
    assert one == pytest.approx((3 / 4 + 3.5 / 4) / 2)
    assert together == 1.0


@pytest.mark.parametrize("method", ["fedproto", "feddistill"])
def test_means_of_classes_tell_which_classes_a_client_has(method: str) -> None:
    leak = probe(Experiment(**TINY, method=method))
    assert 0.95 < leak.one_round <= leak.all_rounds
    assert leak.all_rounds > 0.99
    dense = probe(Experiment(**TINY, method=method, privacy={"dense_uploads": True}))
    assert dense.all_rounds == leak.all_rounds  # zeros are seen as zeros: dense uploads alone hide nothing
    assert dense.up_mb_per_round > leak.up_mb_per_round
    assert dense.accuracy == leak.accuracy


def test_guiding_gradients_tell_it_too_in_time() -> None:
    """One round's study batch need not hold all classes of a client: a row sent is proof, a missing one is not."""
    leak = probe(Experiment(**{**TINY, "rounds": 6}, method="fedl2g-l", batch_size=2))
    assert 0.5 < leak.one_round < 1.0
    assert leak.one_round < leak.all_rounds


def test_noise_with_a_guarantee_against_the_server_leaves_a_guess() -> None:
    privacy = {"clip": 1.0, "epsilon": 1.0, "noise": "client"}
    leak = probe(Experiment(**{**TINY, "rounds": 4}, method="feddistill", privacy=privacy))
    assert 0.3 < leak.one_round < 0.7
    assert leak.epsilon is not None
    assert leak.epsilon <= 1.0


def test_what_cannot_be_probed_is_refused() -> None:
    with pytest.raises(SettingError, match="class vectors"):
        probe(Experiment(**TINY, method="fml"))
    with pytest.raises(SettingError, match="nothing to guess"):
        probe(Experiment(**{**TINY, "partition": "iid", "samples": 400, "clients": 2}, method="feddistill"))
