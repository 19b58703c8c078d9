"""The identity of an experiment: every setting that can change a number is part of its fingerprint, no other is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedl2g.experiment import Experiment, default_settings, documented_fields, overlay
from fedl2g.experiment.identity import belongs

GUARANTEE = {"privacy.clip": 1.0, "privacy.epsilon": 3.0}
# Another value of every setting, and the settings that it needs beside it.
CHANGES: dict[str, Any] = {
    "dataset": "cifar10",
    "samples": 100,
    "image_size": 32,
    "partition": "iid",
    "test_fraction": 0.5,
    "models": "htfe4",
    "clients": 21,
    "participation": 0.5,
    "sampler": "poisson",
    "rounds": 999,
    "local_epochs": 2,
    "batch_size": 11,
    "client_lr": 0.02,
    "optimizer.name": "adamw",
    "optimizer.momentum": 0.9,
    "optimizer.weight_decay": 0.1,
    "optimizer.beta1": 0.8,
    "optimizer.beta2": 0.9,
    "schedule.name": "cosine",
    "schedule.rounds": 100,
    "schedule.final": 0.1,
    "schedule.every": 10,
    "schedule.factor": 0.5,
    "augment.flip": True,
    "augment.crop": 4,
    "amp": "bf16",
    "protocol": "paper",
    "reshuffle": False,
    "equal_start": True,
    "partition_seed": 2,
    "seed": 1,
    "patience": 99,
    "evaluate_every": 2,
    "evaluate_clients": 5,
    "precision": "float64",
    "layout": "contiguous",
    "device": "mps",
    "noise.std": 0.1,
    "noise.coefficient": 0.1,
    "noise.scale": "relative",
    "aggregation.rule": "median",
    "aggregation.trim": 0.1,
    "aggregation.clip": 1.0,
    "attack.share": 0.1,
    "attack.kind": "noise",
    "attack.strength": 2.0,
    "availability.dropout_before": 0.1,
    "availability.dropout_after": 0.1,
    "availability.unstable_share": 0.5,
    "availability.speed_spread": 1.0,
    "availability.speed_jitter": 1.0,
    "availability.deadline": 2.0,
    "availability.late": "use",
    "availability.staleness_power": 1.0,
    "availability.maximum_delay": 11,
    "availability.leave": 0.1,
    "availability.absence_rounds": 21,
    "availability.join_share": 0.1,
    "availability.join_until": 11,
    "privacy.clip": 2.0,
    "privacy.noise_multiplier": 2.0,
    "privacy.epsilon": 4.0,
    "privacy.max_epsilon": 5.0,
    "privacy.delta": 1e-6,
    "privacy.noise": "client",
    "privacy.denominator": "counted",
    "privacy.count_weight": 2.0,
    "privacy.dense_uploads": True,
    "replies.deadline_seconds": 60.0,
    "replies.minimum": 2,
    "replies.below_minimum": "stop",
    "replies.maximum_mb": 1.0,
    "method.server_lr": 1.0,
    "method.warmup_rounds": 1,
    "method.quiz_size": 1,
    "method.guide_init": "zeros",
    "method.preset": "recommended",
    "method.quiz": "rotating",
    "method.guide_weight": "adaptive",
    "method.adaptive_rate": 1.0,
    "method.server_step": "rms",
    "method.rms_step": 0.2,
    "validation_fraction": 0.1,
    "feature_dim": 64,
    "label": "diagnosis",
    "text": "report",
    "ignore": "number",
}
HOW = {
    "execution.engine": ["workers", "flower"],
    "execution.workers": [1, 3],
    "execution.memory_mb": [100],
    "execution.profile": [True],
    "execution.keep_best": [False],
    "execution.checkpoint_every": [1, 99],
    "execution.link_seconds": [1.0],
}
NEEDS: dict[str, dict[str, Any]] = {
    "privacy.clip": GUARANTEE,
    "privacy.noise_multiplier": {"privacy.clip": 1.0, "privacy.noise_multiplier": 1.0},
    "privacy.epsilon": GUARANTEE,
    "privacy.max_epsilon": GUARANTEE,
    "availability.speed_spread": {"availability.deadline": 1.0},
    "availability.speed_jitter": {"availability.deadline": 1.0},
    "optimizer.beta1": {"optimizer.name": "adamw"},
    "optimizer.beta2": {"optimizer.name": "adamw"},
}


def make(changes: dict[str, Any]) -> Experiment:
    return Experiment(**overlay({}, changes))


def test_each_setting_has_another_value_here() -> None:
    tables = {name.partition(".")[0] for name in default_settings() if "." in name} | {"method"}
    options = {f"method.{name}" for name in type(Experiment().method).model_fields if name != "name"}
    names = {name for name, _ in documented_fields() if not name.startswith("method.")} - tables | options
    assert names == CHANGES.keys() | HOW.keys()


@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_that_can_change_a_number_changes_the_fingerprint(name: str) -> None:
    before = NEEDS.get(name, {})
    base, changed = make(before), make({**before, name: CHANGES[name]})
    assert changed != base
    assert changed.fingerprint != base.fingerprint
    assert belongs(name)


@settings(max_examples=50, deadline=None)
@given(st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in HOW.items()}))
def test_no_setting_of_execution_changes_the_fingerprint(how: dict[str, Any]) -> None:
    assert make(how).fingerprint == Experiment().fingerprint
    assert not any(map(belongs, how))


def test_other_methods_are_other_experiments() -> None:
    prints = {
        make({"method": name}).fingerprint for name in ("local", "fedproto", "feddistill", "fedl2g-l", "fedl2g-f")
    }
    assert len(prints) == 5


@pytest.mark.parametrize(
    ("given_settings", "named", "other"),
    [({}, "uniform", "poisson"), ({"privacy": {"clip": 1, "epsilon": 3}}, "poisson", None)],
)
def test_a_sampler_that_is_named_or_not_is_the_same(
    given_settings: dict[str, Any], named: str, other: str | None
) -> None:
    base = Experiment(**given_settings)
    assert base.sampler_name == named
    assert Experiment(**given_settings, sampler=named).fingerprint == base.fingerprint
    if other is not None:
        assert Experiment(**given_settings, sampler=other).fingerprint != base.fingerprint


def test_the_fingerprint_is_the_same_in_every_process() -> None:
    """Run directories and checkpoints hold it: it changes with the settings there are, and with nothing else."""
    assert Experiment().fingerprint == Experiment.from_toml(Experiment().to_toml()).fingerprint
    assert Experiment(participation=1).fingerprint == Experiment(participation=1.0).fingerprint
