"""The setting `protocol`: the choices around a method on which a comparison with published numbers depends.

A protocol decides what other settings leave open; a setting that is given always counts (table: docs/fidelity.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from fedl2g.experiment.settings import Experiment

ProtocolName = Literal["ours", "paper"]
PAPER_PARTITION = 1
"""The seed of the authors' partition."""


@dataclass(frozen=True)
class Choices:
    """What an experiment's settings choose or, where they are absent, its protocol."""

    reshuffle: bool
    """Whether each epoch has a new order of the samples; else they keep the order of the partition."""
    equal_start: bool
    """Whether clients of one architecture start with equal weights."""
    partition_seed: int
    """The seed of the partition: that of the run, or one for all trials."""
    quiz: Literal["fixed", "first"]
    """Which samples are the quiz set of a method that has one, if its options do not say."""


def choices_of(experiment: Experiment) -> Choices:
    """The choices of an experiment."""
    e, paper = experiment, experiment.protocol == "paper"
    seed = PAPER_PARTITION if paper else e.seed
    return Choices(
        reshuffle=not paper if e.reshuffle is None else e.reshuffle,
        equal_start=paper if e.equal_start is None else e.equal_start,
        partition_seed=seed if e.partition_seed is None else e.partition_seed,
        quiz="first" if paper else "fixed",
    )


def resolved(settings: Mapping[str, Any], choices: Choices) -> dict[str, Any]:
    """The settings (a dump) with the choices in place of the protocol's name: equal choices are equal experiments."""
    found = {name: value for name, value in settings.items() if name != "protocol"}
    found |= {name: getattr(choices, name) for name in ("reshuffle", "equal_start", "partition_seed")}
    method = settings["method"]
    if "quiz" in method and method["quiz"] is None:
        found["method"] = {**method, "quiz": choices.quiz}
    return found
