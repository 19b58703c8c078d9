"""The intervals of comparisons hold a known truth as often as they say: 1,000 simulated comparisons each."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_comparisons import SETTINGS, Setting, measure


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_the_interval_covers_the_truth_and_seldom_promises_help_in_vain(setting: Setting) -> None:
    assert 0.93 <= measure(setting, 1000).coverage <= 0.97
    none = measure(replace(setting, effect=0.0), 1000)
    assert 0.93 <= none.coverage <= 0.97
    assert none.helps <= 0.05
