"""The setting `protocol`: the choices around a method on which a comparison with published numbers depends.

A protocol decides what other settings leave open; a setting that is given always counts. docs/fidelity.md has the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from fedl2g.experiment.settings import Experiment

ProtocolName = Literal["ours", "paper"]


@dataclass(frozen=True)
class Protocol:
    """The choices of a protocol, or of an experiment."""

    reshuffle: bool
    """Whether each epoch has a new order of the samples; else they keep the order of the partition."""
    equal_start: bool
    """Whether clients of one architecture start with equal weights."""
    partition_seed: int | None
    """The seed of the partition; None: that of the run, so that every trial has a partition of its own."""
    quiz: Literal["fixed", "first"]
    """Which samples are the quiz set of a method that has one, if its options leave it open."""


PROTOCOLS: Mapping[ProtocolName, Protocol] = {
    "ours": Protocol(reshuffle=True, equal_start=False, partition_seed=None, quiz="fixed"),
    # The authors' public code; seed 1 gives their partition.
    "paper": Protocol(reshuffle=False, equal_start=True, partition_seed=1, quiz="first"),
}


def choices_of(experiment: Experiment) -> Protocol:
    """The choices of an experiment: its own settings, else those of its protocol."""
    default, e = PROTOCOLS[experiment.protocol], experiment
    seed = default.partition_seed if e.partition_seed is None else e.partition_seed
    return Protocol(
        reshuffle=default.reshuffle if e.reshuffle is None else e.reshuffle,
        equal_start=default.equal_start if e.equal_start is None else e.equal_start,
        partition_seed=e.seed if seed is None else seed,
        quiz=default.quiz,
    )


def resolved(settings: Mapping[str, Any], choices: Protocol) -> dict[str, Any]:
    """The settings (a dump) with the choices in place of the protocol's name: equal choices are equal experiments.

    A choice that is the default of `ours` is written as it was before protocols existed, so that older runs can go on.
    """
    found = {name: value for name, value in settings.items() if name not in ("protocol", *_ADDED)}
    found["reshuffle"] = choices.reshuffle
    if choices.equal_start:
        found["equal_start"] = True
    if choices.partition_seed != settings["seed"]:
        found["partition_seed"] = choices.partition_seed
    method = found["method"]
    if "quiz" in method and method["quiz"] is None:
        found["method"] = {**method, "quiz": choices.quiz}
    return found


_ADDED = ("equal_start", "partition_seed")
