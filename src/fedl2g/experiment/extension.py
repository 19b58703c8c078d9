"""Whether a run may be extended: the same experiment with more rounds, and the numbers of a run started with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedl2g.errors import RunError, SettingError
from fedl2g.experiment.settings import Experiment
from fedl2g.methods.registry import get_method


def check_extension(path: Path, about: Mapping[str, Any], experiment: Experiment) -> None:
    """Raise an error unless the run (`about`: its run.json) is this experiment, or this one with fewer rounds."""
    if about["fingerprint"] == experiment.fingerprint:
        return
    rounds = about["rounds"]
    if experiment.fingerprint_with(rounds) != about["fingerprint"]:
        raise RunError(
            f"{path}: holds another experiment ({about['method']}, seed {about['seed']}); choose another --out"
        )
    if experiment.rounds < rounds:
        raise RunError(
            f"rounds: {experiment.rounds} is fewer than the {rounds} of {path}; a run can be extended, not shortened; "
            "give more rounds, or choose another --out"
        )
    if (reason := _reason_against(experiment)) is not None:
        raise SettingError(
            f"rounds: {path} has {rounds} and cannot be extended to {experiment.rounds}: {reason}; choose another "
            "--out for a run with all rounds from the start"
        )


def _reason_against(experiment: Experiment) -> str | None:
    """Why the rounds so far would have differed in a longer run; None if they would not."""
    if get_method(experiment.method.name).traits.uses_rounds:
        return f"what {experiment.method.name} computes in a round depends on the number of rounds"
    if experiment.schedule.uses_rounds:
        return "the rates of its cosine schedule depend on the number of rounds, unless schedule.rounds is given"
    if experiment.privacy.on:
        return "its privacy budget was planned for its rounds, and more of them would spend more"
    return None
