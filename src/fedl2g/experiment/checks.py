"""Validation of single settings with their own syntax, and of combinations of settings."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedl2g.errors import SettingError
from fedl2g.methods.registry import get_method
from fedl2g.models.catalog import GROUP_OF_KIND, has_equal_heads, resolve_models

if TYPE_CHECKING:
    from fedl2g.experiment.settings import Experiment

_DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?(,cuda:\d+)*")


def check_spelling(field: str, text: str) -> None:
    """Raise SettingError for a malformed `models`, `partition` or `device`."""
    _FORMS[field](text)


def _check_device(text: str) -> None:
    if not _DEVICE.fullmatch(text):
        raise SettingError(
            f"device: {text!r} is not known; expected auto, cpu, mps, cuda, or a list such as cuda:0,cuda:1"
        )


def _check_partition(text: str) -> None:
    from fedl2g.datasets.partition_spec import parse_partition  # here, because it imports numpy

    parse_partition(text)


_FORMS: dict[str, Callable[[str], object]] = {
    "models": resolve_models,
    "partition": _check_partition,
    "device": _check_device,
}


def with_models(values: Any) -> Any:
    """The settings with the group of the data's kind, if no models are named and the dataset's name says it."""
    if not isinstance(values, dict) or "models" in values or not isinstance(values.get("dataset"), str):
        return values
    from fedl2g.datasets.kinds import expected_kind  # here, because it imports numpy

    kind = expected_kind(values["dataset"], values.get("text"))
    return values if kind is None else {**values, "models": GROUP_OF_KIND[kind]}


def check_method(experiment: Experiment) -> None:
    """Raise SettingError for settings that the method's traits rule out."""
    name, method = experiment.method.name, get_method(experiment.method.name)
    traits, warmup = method.traits, method.warmup_rounds(experiment.method)
    if warmup >= experiment.rounds:
        raise SettingError(
            f"rounds: {experiment.rounds} is not more than the {warmup} warm-up rounds of {name}, in which no network "
            f"trains; expected more than {warmup}; raise rounds, or lower method.warmup_rounds"
        )
    if traits.shares_head and not has_equal_heads(experiment.architectures):
        raise SettingError(
            f"models: {experiment.models!r} mixes different heads, but {name} shares one head among all clients; "
            "choose a group with equal heads (such as htfe8) or another method"
        )
    if experiment.amp != "off" and experiment.precision != "float32":
        raise SettingError(
            f"amp: {experiment.amp} needs precision float32, not {experiment.precision}; leave one of the two out"
        )
    if experiment.privacy.on and traits.raw_replies:
        raise SettingError(
            f"privacy.clip: {name} reads individual replies, so one client's influence is not bounded; choose another "
            "method, or leave privacy.clip out"
        )
    if experiment.privacy.on and traits.compressed:
        raise SettingError(
            f"privacy.clip: {name} compresses its uploads, and clipping factors does not bound their product; choose "
            "another method, or leave privacy.clip out"
        )
    if experiment.aggregation.rule != "mean" and traits.raw_replies:
        raise SettingError(
            f"aggregation.rule: {name} reads individual replies, so {experiment.aggregation.rule} would not be "
            "applied; use mean or another method"
        )
    if experiment.privacy.dense_uploads and traits.raw_replies:
        raise SettingError(
            f"privacy.dense_uploads: {name} reads individual replies, which must keep their form; leave it out, or "
            "choose another method"
        )


def check_privacy(experiment: Experiment) -> None:
    """Raise SettingError for settings that the privacy guarantee does not cover."""
    if not experiment.privacy.on:
        return
    rule, late = experiment.aggregation.rule, experiment.availability.late
    if rule != "mean":
        raise SettingError(
            f"aggregation.rule: {rule} is not covered by the privacy guarantee, which holds for sums; use mean"
        )
    if experiment.sampler_name != "poisson":
        raise SettingError(
            f"sampler: {experiment.sampler} is not covered by the privacy guarantee, which requires independent draws "
            "of clients; use poisson, or leave it out"
        )
    if experiment.availability.deadline is not None and late == "use":
        raise SettingError(
            "availability.late: replies used in a later round are not covered by the privacy guarantee; use drop"
        )
