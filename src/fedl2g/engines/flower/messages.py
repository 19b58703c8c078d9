"""Messages between the server and a node: one payload and a few plain numbers, validated on arrival.

A payload is sent as one array of safetensors bytes: the number of requests per message does not depend on the number of
tensors, and nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedl2g.engines.base import Evaluation
from fedl2g.errors import FedL2GError, PayloadError, SettingError
from fedl2g.experiment import Experiment
from fedl2g.methods.base import Reply, Report
from fedl2g.payload import Payload, from_bytes, to_bytes
from fedl2g.references import references_in
from fedl2g.schema import Schema

_SERIALISATION = "safetensors"
_COUNT_LIMIT = 2**40  # upper bound on samples and steps
_SECONDS_LIMIT = 1e9  # upper bound on training time: sums over many clients must stay finite
_NAME_LIMIT = 64
_REASON_LIMIT = 5_000  # characters of a refusal that are kept: the last ones, which name the error
_OTHERS_LIMIT = 16  # additional predictors of a method, numbers of its own in a report


@dataclass(frozen=True)
class Request:
    """A request to one client: train in a round, or evaluate the model in its state after a round."""

    run: str  # the run's id, which separates the models of two runs of one experiment
    experiment: Experiment
    classes: tuple[str, ...]
    inputs: Schema
    round: int
    payload: Payload
    best: int | None = None  # the best round so far, whose model the node keeps

    @property
    def digest(self) -> str:
        """A digest of the broadcast, by which a node recognises a repeated request."""
        return hashlib.blake2b(to_bytes(self.payload), digest_size=16, person=b"fedl2g").hexdigest()


def pack_request(request: Request) -> RecordDict:
    """Convert a request to Flower records."""
    about = {
        "run": request.run,
        "experiment": json.dumps(request.experiment.model_dump(mode="json", exclude={"execution"})),
        "classes": list(request.classes),
        "inputs": json.dumps(request.inputs.to_json()),
        "round": request.round,
    }
    if request.best is not None:
        about["best"] = request.best
    return RecordDict({"about": ConfigRecord(about), "payload": _pack(request.payload)})  # type: ignore[arg-type]


def unpack_run(records: RecordDict) -> str:
    """The id of the run that a request belongs to."""
    run = _record(records, "about", ConfigRecord).get("run")
    if not isinstance(run, str) or not run.isalnum() or len(run) > _NAME_LIMIT:
        raise PayloadError(f"the request: its run is not valid; expected at most {_NAME_LIMIT} letters and digits")
    return run


def unpack_request(records: RecordDict, limit: int, *, trust: bool = False) -> Request:
    """Read a request; raises PayloadError for anything malformed.

    Without `trust`, an experiment that names code to import is refused too: a coordinator decides what is learnt, not
    which code a site runs.
    """
    run = unpack_run(records)
    about = _record(records, "about", ConfigRecord)
    text, classes, inputs = (about.get(key) for key in ("experiment", "classes", "inputs"))
    if not isinstance(text, str) or not isinstance(classes, list) or not isinstance(inputs, str):
        raise PayloadError("the request: fields are missing; expected an experiment, classes and the form of inputs")
    try:
        settings = json.loads(text)
        if not trust and (code := references_in(settings)):
            raise SettingError(
                f"it names code to import ({', '.join(code)}); a coordinator's experiment may not; name code in the "
                "site file"
            )
        experiment = Experiment(**settings)
    except (ValueError, TypeError, AttributeError, RecursionError, SettingError) as error:
        raise PayloadError(f"the request: its experiment cannot be used: {error}") from error
    try:
        schema = Schema.from_json(json.loads(inputs))
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"the request: the form of its inputs cannot be used: {error}") from error
    return Request(
        run,
        experiment,
        tuple(str(name) for name in classes),
        schema,
        _count(about.get("round"), "round"),
        _unpack(records, limit),
        _count(about["best"], "best") if "best" in about else None,
    )


def pack_reply(run: str, round: int, reply: Reply) -> RecordDict:
    """Convert a client's answer to a training request to Flower records."""
    report = reply.report
    numbers: dict[str, Any] = {"samples": report.samples, "steps": report.steps, "seconds": float(report.seconds)}
    if report.loss is not None:
        numbers["loss"] = float(report.loss)
    about = ConfigRecord({"run": run, "round": round, "client": reply.client})
    metrics = MetricRecord({name: float(value) for name, value in report.metrics.items()})
    return RecordDict(
        {"about": about, "report": MetricRecord(numbers), "metrics": metrics, "payload": _pack(reply.payload)}
    )


def unpack_reply(records: RecordDict, *, client: int, run: str, round: int, limit: int) -> Reply:
    """Read the answer to a training request; raises PayloadError for a malformed or mismatched one."""
    _raise_refusal(records)
    _check_sender(records, client=client, run=run, round=round)
    numbers = _record(records, "report", MetricRecord)
    if unknown := sorted(set(numbers) - {"samples", "steps", "seconds", "loss"}):
        raise PayloadError(f"the report: unknown number {unknown[0][:_NAME_LIMIT]!r}")
    loss, seconds = numbers.get("loss"), numbers.get("seconds")
    if loss is not None and not isinstance(loss, float):
        raise PayloadError(f"the report: its loss is of type {type(loss).__name__}; expected a float")
    if not isinstance(seconds, float) or not 0 <= seconds < _SECONDS_LIMIT:
        raise PayloadError("the report: its seconds are not valid; expected a number of at least 0")
    samples = _count(numbers.get("samples"), "samples")
    if samples < 1:
        raise PayloadError("the report: the train set has no samples; expected at least 1")
    steps, metrics = _count(numbers.get("steps"), "steps"), _metrics(records)
    report = Report(samples, steps, loss, seconds, metrics=metrics)
    return Reply(client, _unpack(records, limit), report)


def _metrics(records: RecordDict) -> dict[str, float]:
    """The method's own numbers in a report; the inbox checks that they are declared and in range."""
    metrics: dict[str, float] = {}
    for name, value in _record(records, "metrics", MetricRecord).items():
        if len(metrics) == _OTHERS_LIMIT:
            raise PayloadError(f"the report: it has too many numbers of its method; expected at most {_OTHERS_LIMIT}")
        if len(name) > _NAME_LIMIT or not isinstance(value, float) or not math.isfinite(value):
            raise PayloadError(f"the report: its {name[:_NAME_LIMIT]!r} is not valid; expected a finite number")
        metrics[name] = value
    return metrics


def pack_evaluation(run: str, round: int, evaluation: Evaluation) -> RecordDict:
    """Convert a client's answer to an evaluation request to Flower records."""
    counts = {"samples": evaluation.samples, "correct": evaluation.correct}
    if evaluation.validation_samples:
        counts["validation-samples"] = evaluation.validation_samples
        counts["validation-correct"] = evaluation.validation_correct
    scores = {"balanced-accuracy": evaluation.balanced_accuracy, "macro-f1": evaluation.macro_f1}
    about = ConfigRecord({"run": run, "round": round, "client": evaluation.client})
    return RecordDict(
        {
            "about": about,
            "counts": MetricRecord(dict(counts)),
            "scores": MetricRecord({name: value for name, value in scores.items() if value is not None}),
            "others": MetricRecord(dict(evaluation.others)),
        }
    )


def unpack_evaluation(records: RecordDict, *, client: int, run: str, round: int, validated: bool = False) -> Evaluation:
    """Read the answer to an evaluation request; raises PayloadError for a malformed or mismatched one.

    `validated`: the experiment has validation samples, so the answer must count them; otherwise it must not.
    """
    _raise_refusal(records)
    _check_sender(records, client=client, run=run, round=round)
    counts, scores, others = (_record(records, name, MetricRecord) for name in ("counts", "scores", "others"))
    if len(others) > _OTHERS_LIMIT:
        raise PayloadError(
            f"the evaluation: it has {len(others)} additional predictors; expected at most {_OTHERS_LIMIT}"
        )
    further = {str(name)[:_NAME_LIMIT]: _count(value, "correct") for name, value in others.items()}
    samples, correct = _correct_of(counts, "", *further.values())
    held, right = _correct_of(counts, "validation-") if validated else (0, 0)
    if not validated and any(str(name).startswith("validation-") for name in counts):
        raise PayloadError("the evaluation: it counts validation samples; expected none in this experiment")
    balanced, macro_f1 = _score(scores, "balanced-accuracy"), _score(scores, "macro-f1")
    return Evaluation(client, samples, correct, further, balanced, macro_f1, held, right)


def _correct_of(counts: MetricRecord, prefix: str, *further: int) -> tuple[int, int]:
    """The samples and the correct predictions of one side; no count may be larger than the samples."""
    samples, correct = (_count(counts.get(prefix + name), prefix + name) for name in ("samples", "correct"))
    if samples < 1 or any(count > samples for count in (correct, *further)):
        raise PayloadError(
            f"the evaluation: it counts {correct} correct predictions of {samples}; expected at least 1 sample and no "
            "more correct predictions than samples"
        )
    return samples, correct


def _score(scores: MetricRecord, name: str) -> float:
    value = scores.get(name)
    if not isinstance(value, float) or not 0 <= value <= 1:
        raise PayloadError(f"the evaluation: its {name} is not valid; expected a number from 0 to 1")
    return value


@dataclass(frozen=True)
class Kept:
    """A node's word that it keeps the model of the best round."""

    client: int


def pack_kept(run: str, round: int, kept: Kept) -> RecordDict:
    """Convert a client's answer to the request at the end of a run to Flower records."""
    return RecordDict({"about": ConfigRecord({"run": run, "round": round, "client": kept.client})})


def unpack_kept(records: RecordDict, *, client: int, run: str, round: int) -> Kept:
    """Read the answer to the request at the end of a run; raises PayloadError for a mismatched one."""
    _raise_refusal(records)
    _check_sender(records, client=client, run=run, round=round)
    return Kept(client)


class Refused(FedL2GError):
    """A node refused a request or failed to serve it; the message comes from the node."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def pack_refusal(error: FedL2GError) -> RecordDict:
    """Convert the error that kept a node from serving a request to Flower records."""
    return RecordDict({"refusal": ConfigRecord({"kind": type(error).__name__, "message": str(error)[-_REASON_LIMIT:]})})


def _raise_refusal(records: RecordDict) -> None:
    if "refusal" in records:
        refusal = _record(records, "refusal", ConfigRecord)
        kind, message = refusal.get("kind"), refusal.get("message")
        if not isinstance(kind, str) or not isinstance(message, str) or not message.strip():
            raise PayloadError("the refusal: it gives no reason; expected a kind and a message")
        raise Refused(kind[:_NAME_LIMIT], message[-_REASON_LIMIT:])


def _check_sender(records: RecordDict, *, client: int, run: str, round: int) -> None:
    about = _record(records, "about", ConfigRecord)
    found = (about.get("client"), about.get("run"), about.get("round"))
    if found != (client, run, round):
        claimed = ", ".join(
            f"{name} {str(value)[:_NAME_LIMIT]}" for name, value in zip(("client", "run", "round"), found, strict=True)
        )
        raise PayloadError(
            f"the reply: it is from {claimed}; expected one from client {client}, run {run}, round {round}"
        )


def pack_identity(client: int) -> RecordDict:
    """Convert the number of a node's client to Flower records."""
    return RecordDict({"identity": ConfigRecord({"client": client})})


def unpack_identity(records: RecordDict, clients: int) -> int:
    """Read which client lives on a node; raises PayloadError for an unknown number."""
    _raise_refusal(records)
    client = _record(records, "identity", ConfigRecord).get("client")
    if not isinstance(client, int) or isinstance(client, bool) or not 0 <= client < clients:
        raise PayloadError(
            f"it claims to be client {str(client)[:_NAME_LIMIT]}; expected a number from 0 to {clients - 1}"
        )
    return client


def _pack(payload: Payload) -> ArrayRecord:
    data = to_bytes(payload)
    return ArrayRecord({"payload": Array("uint8", (len(data),), _SERIALISATION, data)})


def _unpack(records: RecordDict, limit: int) -> Payload:
    arrays = _record(records, "payload", ArrayRecord)
    if set(arrays) != {"payload"}:
        raise PayloadError("the message: its arrays are not valid; expected exactly one, the payload")
    array = arrays["payload"]
    if array.stype != _SERIALISATION or array.dtype != "uint8" or tuple(array.shape) != (len(array.data),):
        raise PayloadError(f"the payload: its declared form ({array.dtype}, {array.shape}) does not match its bytes")
    if len(array.data) > limit:
        raise PayloadError(f"the payload: it has {len(array.data)} bytes; expected at most {limit}")
    return from_bytes(array.data)


def _record(records: RecordDict, name: str, kind: type[Any]) -> Any:
    record = records.get(name)
    if not isinstance(record, kind):
        raise PayloadError(f"the message: it has no {kind.__name__} named {name!r}")
    return record


def _count(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _COUNT_LIMIT:
        raise PayloadError(f"{name}: {str(value)[:_NAME_LIMIT]} is not allowed; expected a whole number of at least 0")
    return value
