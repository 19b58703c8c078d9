"""The result of a run: the numbers shown in tables (imports no torch, so that `fedl2g list` starts fast)."""

from __future__ import annotations

import functools
import statistics
import sys
import types
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fedl2g.round.record import (
    MB,
    Guarantee,
    RoundRecord,
    Selection,
    guarantee_of,
    require_bounded,
    seconds_per_client,
    selected_record,
    selection_of,
)

Status = Literal["finished", "stopped early", "diverged"]


@dataclass(frozen=True)
class RunResult:
    """The result of a run. Accuracies are between 0 and 1."""

    method: str
    seed: int
    status: Status
    rounds: int  # rounds that were run
    best_accuracy: float  # on the test samples, in the best round
    best_round: int
    last_accuracy: float
    mean_client_accuracy: float  # mean over clients in the best round
    std_client_accuracy: float
    best_loss: float | None  # lowest original local loss of a round
    other_accuracies: dict[str, float]  # of further predictors (FedProto's head), in the best round
    up_mb_per_round: float
    down_mb_per_round: float
    client_seconds_per_round: float  # of one client, mean over clients and rounds after the warm-up
    server_seconds_per_round: float
    run: str  # the run directory
    epsilon: float | None = None  # spent in total; None without a privacy guarantee
    delta: float | None = None
    guarantee: Guarantee | None = None  # "simulated": the noise was not secret; None without a privacy guarantee
    refused: int = 0  # replies that were refused, over all rounds
    selection: Selection = "test"  # the samples that chose the best round
    test_accuracy: float | None = None  # in the best round; equal to `best_accuracy`
    validation_accuracy: float | None = None  # in the best round; None without validation samples
    balanced_accuracy: float | None = None  # in the best round, mean over clients
    macro_f1: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` reads them back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RunResult:
        """Inverse of `to_dict`; ValueError if the values are malformed.

        Checked without pydantic: building its validator takes longer than everything else in `fedl2g list`.
        """
        kinds = _kinds()
        missing = [f.name for f in fields(cls) if f.default is MISSING and f.name not in values]
        wrong = [name for name, value in values.items() if name not in kinds or not _fits(value, kinds[name])]
        if missing or wrong:
            raise ValueError(f"{(missing + wrong)[0]!r} is missing, unknown or of the wrong type")
        require_bounded(values)
        return cls(**{"test_accuracy": values["best_accuracy"], **values})


def summarize(
    history: Sequence[RoundRecord], *, method: str, seed: int, status: Status, run: str, warmup_rounds: int = 0
) -> RunResult:
    """The result of a run with this history."""
    evaluated = [record.accuracy for record in history if record.accuracy is not None]
    best = selected_record(history)
    if best is None or best.accuracy is None:
        raise ValueError("a run without any evaluation has no result")
    rounds = [record for record in history if record.round > 0]
    losses = [record.loss for record in rounds if record.loss is not None]

    def per_round(values: Sequence[float]) -> float:
        return statistics.fmean(values) if values else 0.0

    return RunResult(
        method=method,
        seed=seed,
        status=status,
        rounds=len(rounds),
        best_accuracy=best.accuracy.pooled,
        best_round=best.round,
        last_accuracy=evaluated[-1].pooled,
        mean_client_accuracy=best.accuracy.mean,
        std_client_accuracy=best.accuracy.std,
        best_loss=min(losses, default=None),
        other_accuracies=best.accuracy.others,
        up_mb_per_round=per_round([r.up_bytes / MB for r in rounds]),
        down_mb_per_round=per_round([r.down_bytes / MB for r in rounds]),
        client_seconds_per_round=seconds_per_client(r for r in rounds if r.round > warmup_rounds) or 0.0,
        server_seconds_per_round=per_round([r.server_seconds for r in rounds]),
        run=run,
        epsilon=rounds[-1].privacy.get("epsilon") if rounds else None,
        delta=rounds[-1].privacy.get("delta") if rounds else None,
        guarantee=guarantee_of(rounds[-1].privacy) if rounds else None,
        refused=sum(len(r.refused) for r in rounds),
        selection=selection_of(history),
        test_accuracy=best.accuracy.pooled,
        validation_accuracy=best.accuracy.validation,
        balanced_accuracy=best.accuracy.balanced,
        macro_f1=best.accuracy.macro_f1,
    )


def aggregate(results: Sequence[RunResult]) -> dict[str, tuple[float, float | None]]:
    """Mean and standard deviation of each metric over seeds; one seed has no deviation."""
    numbers: dict[str, tuple[float, float | None]] = {}
    for name in (
        "best_accuracy",
        "last_accuracy",
        "mean_client_accuracy",
        "best_round",
        "up_mb_per_round",
        "down_mb_per_round",
        "client_seconds_per_round",
        "server_seconds_per_round",
    ):
        numbers[name] = _mean_and_std([float(getattr(result, name)) for result in results])
    for name in other_predictors(results):
        numbers[f"{name}_accuracy"] = _mean_and_std([result.other_accuracies[name] for result in results])
    return numbers


def other_predictors(results: Sequence[RunResult]) -> list[str]:
    """The names of further predictors of a method, such as FedProto's head, that all results have."""
    return [name for name in results[0].other_accuracies if all(name in r.other_accuracies for r in results)]


def _mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


@functools.cache
def _kinds() -> dict[str, Any]:
    return get_type_hints(RunResult)


def _fits(value: object, kind: Any) -> bool:
    """Whether a value from a file has the given type; numbers must be finite, and booleans are not numbers."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (types.UnionType, Union):  # the second with a Literal
        return any(_fits(value, one) for one in inside)
    if origin is Literal:
        return value in inside
    if origin is dict:
        return isinstance(value, dict) and all(_fits(k, inside[0]) and _fits(v, inside[1]) for k, v in value.items())
    if kind is float:
        return isinstance(value, int | float) and type(value) is not bool and abs(value) <= sys.float_info.max
    return type(value) is kind
