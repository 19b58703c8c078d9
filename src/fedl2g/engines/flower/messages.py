"""Messages between the server and a node: one payload and a few plain numbers, validated on arrival.

A payload is sent as one array of safetensors bytes: the number of requests per message does not depend on the number of
tensors, and nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedl2g.engines.base import HONEST_CLIENTS, Evaluation
from fedl2g.engines.flower import strict
from fedl2g.engines.flower.identity import raise_refusal
from fedl2g.errors import PayloadError, SettingError
from fedl2g.experiment import Experiment
from fedl2g.methods.base import Reply, Report
from fedl2g.payload import Payload, from_bytes, to_bytes
from fedl2g.references import references_in
from fedl2g.schema import Schema

_SERIALISATION = "safetensors"
_SECONDS_LIMIT = 1e9  # upper bound on training time: sums over many clients must stay finite
_CLASS_NAME_LIMIT = 256
_CLASSES_LIMIT = 100_000
_SIDE_LIMIT = 2**16  # upper bound on the sides of a sample
_EXPERIMENT_LIMIT = 2**20  # characters
_OTHERS_LIMIT = 16  # additional predictors of a method, numbers of its own in a report
_SENDER = ("run", "round", "client")
_EVALUATION = ("counts", "scores", "others")


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
        "experiment": _dumped(request.experiment),
        "classes": list(request.classes),
        "inputs": json.dumps(request.inputs.to_json()),
        "round": request.round,
    }
    if request.best is not None:
        about["best"] = request.best
    return RecordDict({"about": ConfigRecord(about), "payload": _pack(request.payload)})  # type: ignore[arg-type]


def unpack_run(records: RecordDict) -> str:
    """The id of the run that a request belongs to."""
    return strict.run_id(strict.record(records, "about", ConfigRecord).get("run"))


def unpack_request(records: RecordDict, limit: int, *, trust: bool = False) -> Request:
    """Read a request; raises PayloadError for anything malformed.

    Without `trust`, an experiment that names code to import is refused too: a coordinator decides what is learnt, not
    which code a site runs.
    """
    strict.only(records, "about", "payload")
    about = strict.record(records, "about", ConfigRecord)
    strict.keys(about, "request", ("run", "experiment", "classes", "inputs", "round"), ("best",))
    experiment = _experiment(about["experiment"], trust=trust)
    round = strict.whole(about["round"], "round", 0, experiment.rounds)
    return Request(
        strict.run_id(about["run"]),
        experiment,
        _classes(about["classes"]),
        _inputs(about["inputs"]),
        round,
        _unpack(records, limit),
        strict.whole(about["best"], "best", 0, round) if "best" in about else None,
    )


def _experiment(text: object, *, trust: bool) -> Experiment:
    """The experiment of a request, which must be complete and in exactly the form in which we send it."""
    if type(text) is not str or len(text) > _EXPERIMENT_LIMIT:
        raise PayloadError(f"request: its experiment is not a text of at most {_EXPERIMENT_LIMIT} characters")
    try:
        settings = json.loads(text)
        if not trust and (code := references_in(settings)):
            raise SettingError(
                f"it names code to import ({', '.join(code)}), which a coordinator's experiment may not; name code in "
                "the site file"
            )
        experiment = Experiment(**settings)
    except (ValueError, TypeError, AttributeError, RecursionError, SettingError) as error:
        raise PayloadError(f"request: its experiment cannot be used: {strict.printable(str(error))}") from error
    if _dumped(experiment) != text:
        raise PayloadError(
            "request: its experiment is incomplete or has values of other types; expected every setting, as this "
            "version of fedl2g writes them; install the coordinator's version"
        )
    return experiment


def _dumped(experiment: Experiment) -> str:
    return json.dumps(experiment.model_dump(mode="json", exclude={"execution"}))


def _classes(names: object) -> tuple[str, ...]:
    if not isinstance(names, list) or not 2 <= len(names) <= _CLASSES_LIMIT:
        raise PayloadError(f"classes: not allowed; expected a list of 2 to {_CLASSES_LIMIT} names")
    classes = tuple(strict.text(name, "classes", _CLASS_NAME_LIMIT) for name in names)
    if len(set(classes)) != len(classes):
        raise PayloadError("classes: names are not unique; expected each once")
    return classes


def _inputs(text: object) -> Schema:
    """The form of a sample, which must be written exactly as we send it."""
    if type(text) is not str or len(text) > _EXPERIMENT_LIMIT:
        raise PayloadError(f"inputs: not allowed; expected a text of at most {_EXPERIMENT_LIMIT} characters")
    try:
        schema = Schema.from_json(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"inputs: cannot be used: {strict.printable(str(error))}") from error
    for column in schema.columns:
        for name in (column.name, *(column.categories or ())):
            strict.text(name, "inputs", _CLASS_NAME_LIMIT)
    if any(side > _SIDE_LIMIT for side in schema.shape) or json.dumps(schema.to_json()) != text:
        raise PayloadError(f"inputs: not allowed; expected the form of a sample, each side at most {_SIDE_LIMIT}")
    return schema


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
    raise_refusal(records)
    strict.only(records, "about", "report", "metrics", "payload")
    _check_sender(records, client=client, run=run, round=round)
    numbers = strict.record(records, "report", MetricRecord)
    strict.keys(numbers, "report", ("samples", "steps", "seconds"), ("loss",))
    loss = numbers.get("loss")
    if loss is not None and type(loss) is not float:  # its range is checked by the inbox, on every engine alike
        raise PayloadError(f"report: its loss is of type {type(loss).__name__}; expected a float")
    report = Report(
        strict.whole(numbers["samples"], "report: samples", 1),
        strict.whole(numbers["steps"], "report: steps"),
        loss,
        strict.number(numbers["seconds"], "report: seconds", 0, _SECONDS_LIMIT),
        metrics=_metrics(records),
    )
    return Reply(client, _unpack(records, limit), report)


def _metrics(records: RecordDict) -> dict[str, float]:
    """The method's own numbers in a report; the inbox checks that they are declared and in range."""
    metrics = strict.record(records, "metrics", MetricRecord)
    if len(metrics) > _OTHERS_LIMIT:
        raise PayloadError(f"report: has too many numbers of its method; expected at most {_OTHERS_LIMIT}")
    largest = sys.float_info.max
    return {
        strict.text(name, "report"): strict.number(value, f"report: {strict.shown(name)}", -largest, largest)
        for name, value in metrics.items()
    }


def pack_evaluation(run: str, round: int, evaluation: Evaluation) -> RecordDict:
    """Convert a client's evaluation to Flower records."""
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
    """Read a client's evaluation; raises PayloadError for a malformed or mismatched one.

    `validated`: the experiment has validation samples, so the answer must count them; otherwise it must not.
    """
    raise_refusal(records)
    strict.only(records, "about", *_EVALUATION)
    _check_sender(records, client=client, run=run, round=round)
    counts, scores, others = (strict.record(records, name, MetricRecord) for name in _EVALUATION)
    sides = ("", "validation-") if validated else ("",)
    strict.keys(counts, "evaluation", [side + name for side in sides for name in ("samples", "correct")])
    strict.keys(scores, "evaluation", ("balanced-accuracy", "macro-f1"))
    samples, correct = _correct_of(counts, "")
    held, right = _correct_of(counts, "validation-") if validated else (0, 0)
    balanced, macro_f1 = (
        strict.number(scores[name], f"evaluation: {name}", 0, 1) for name in ("balanced-accuracy", "macro-f1")
    )
    return Evaluation(client, samples, correct, _others(others, samples), balanced, macro_f1, held, right)


def pack_trained(run: str, round: int, reply: Reply, evaluation: Evaluation | None) -> RecordDict:
    """Convert a client's reply, and its evaluation if that is due and needs nothing of the server, to one message."""
    evaluated = {} if evaluation is None else pack_evaluation(run, round, evaluation)
    return RecordDict({**pack_reply(run, round, reply), **evaluated})


def split_trained(records: RecordDict) -> tuple[RecordDict, RecordDict | None]:
    """The two parts of such a message, as `unpack_reply` and `unpack_evaluation` read them."""
    evaluated = {name: record for name, record in records.items() if name in _EVALUATION}
    trained = RecordDict({name: record for name, record in records.items() if name not in _EVALUATION})
    if not evaluated:
        return trained, None
    return trained, RecordDict({**evaluated, "about": strict.record(records, "about", ConfigRecord)})


def _others(others: MetricRecord, samples: int) -> dict[str, int]:
    """The correct predictions of the method's further predictors."""
    if len(others) > _OTHERS_LIMIT:
        raise PayloadError(f"evaluation: has {len(others)} additional predictors; expected at most {_OTHERS_LIMIT}")
    if HONEST_CLIENTS in others:
        raise PayloadError(f"evaluation: a predictor is named {HONEST_CLIENTS!r}, which the server uses itself")
    return {
        strict.text(name, "evaluation"): strict.whole(value, f"evaluation: {strict.shown(name)}", 0, samples)
        for name, value in others.items()
    }


def _correct_of(counts: MetricRecord, prefix: str) -> tuple[int, int]:
    """The samples and the correct predictions of one side; these cannot be more than the samples."""
    samples = strict.whole(counts[prefix + "samples"], f"evaluation: {prefix}samples", 1)
    return samples, strict.whole(counts[prefix + "correct"], f"evaluation: {prefix}correct", 0, samples)


@dataclass(frozen=True)
class Kept:
    """A node's confirmation that it keeps the model of the best round."""

    client: int


def pack_kept(run: str, round: int, kept: Kept) -> RecordDict:
    """Convert a client's answer to the request at the end of a run to Flower records."""
    return RecordDict({"about": ConfigRecord({"run": run, "round": round, "client": kept.client})})


def unpack_kept(records: RecordDict, *, client: int, run: str, round: int) -> Kept:
    """Read the answer to the request at the end of a run; raises PayloadError for a mismatched one."""
    raise_refusal(records)
    strict.only(records, "about")
    _check_sender(records, client=client, run=run, round=round)
    return Kept(client)


def _check_sender(records: RecordDict, *, client: int, run: str, round: int) -> None:
    about = strict.record(records, "about", ConfigRecord)
    strict.keys(about, "reply", _SENDER)
    expected = {"client": client, "run": run, "round": round}
    for name, value in expected.items():
        if type(about[name]) is not type(value) or about[name] != value:
            claimed = ", ".join(f"{name} {strict.shown(about[name])}" for name in expected)
            raise PayloadError(f"reply: is from {claimed}; expected one from client {client}, run {run}, round {round}")


def _pack(payload: Payload) -> ArrayRecord:
    data = to_bytes(payload)
    return ArrayRecord({"payload": Array("uint8", (len(data),), _SERIALISATION, data)})


def _unpack(records: RecordDict, limit: int) -> Payload:
    arrays = strict.record(records, "payload", ArrayRecord)
    if set(arrays) != {"payload"}:
        raise PayloadError("message: its arrays are not valid; expected exactly one, the payload")
    array = arrays["payload"]
    if array.stype != _SERIALISATION or array.dtype != "uint8" or tuple(array.shape) != (len(array.data),):
        form = f"{strict.shown(array.dtype)}, {strict.shown(array.shape)}"
        raise PayloadError(f"payload: its declared form ({form}) does not match its bytes")
    if len(array.data) > limit:
        raise PayloadError(f"payload: has {len(array.data)} bytes; expected at most {limit}")
    return from_bytes(array.data)
