"""What crosses between the server and a node: one payload and a few plain numbers, checked on arrival.

A payload travels as one array of safetensors bytes: a message then costs the same few requests however many tensors
a method exchanges, and nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedl2g.engines.base import Evaluation
from fedl2g.errors import FedL2GError, PayloadError, SettingError
from fedl2g.experiment import Experiment
from fedl2g.methods.base import Reply, Report
from fedl2g.payload import Payload, from_bytes, to_bytes
from fedl2g.references import references_in

_SERIALISATION = "safetensors"
_COUNT_LIMIT = 2**40  # no client has more samples or takes more steps than this
_SECONDS_LIMIT = 1e9  # nor trains longer: sums of what many clients say must stay numbers
_NAME_LIMIT = 64
_REASON_LIMIT = 5_000  # characters of the words in which a node refuses: the last ones, which name the error
_OTHERS_LIMIT = 16  # further predictors of a method


@dataclass(frozen=True)
class Request:
    """What the server asks of one client: train in a round, or evaluate the model as it was after a round."""

    run: str  # the run's own name: two runs of one experiment keep their models apart
    experiment: Experiment
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    round: int
    payload: Payload

    @property
    def digest(self) -> str:
        """A name for exactly this request: a repeated one is answered from the store."""
        return hashlib.blake2b(to_bytes(self.payload), digest_size=16, person=b"fedl2g").hexdigest()


def pack_request(request: Request) -> RecordDict:
    """The records of a request."""
    about = {
        "run": request.run,
        "experiment": json.dumps(request.experiment.model_dump(mode="json", exclude={"execution"})),
        "classes": list(request.classes),
        "image-shape": list(request.image_shape),
        "round": request.round,
    }
    return RecordDict({"about": ConfigRecord(about), "payload": _pack(request.payload)})  # type: ignore[arg-type]


def unpack_run(records: RecordDict) -> str:
    """The name of the run that a request belongs to."""
    run = _record(records, "about", ConfigRecord).get("run")
    if not isinstance(run, str) or not run.isalnum() or len(run) > _NAME_LIMIT:
        raise PayloadError("the request names no run")
    return run


def unpack_request(records: RecordDict, limit: int, *, trust: bool = False) -> Request:
    """The request in these records; anything else is refused.

    So is an experiment that names code to import (`trust`: it is the user's own): a coordinator says what is learnt,
    not what a site runs.
    """
    run = unpack_run(records)
    about = _record(records, "about", ConfigRecord)
    text, classes, shape = (about.get(key) for key in ("experiment", "classes", "image-shape"))
    if not isinstance(text, str) or not isinstance(classes, list) or not isinstance(shape, list) or len(shape) != 3:
        raise PayloadError("the request holds no experiment, classes and image shape")
    try:
        settings = json.loads(text)
        if not trust and (code := references_in(settings)):
            raise SettingError(f"it names code to import ({', '.join(code)}); a site names its own in its site file")
        experiment = Experiment(**settings)
    except (ValueError, TypeError, AttributeError, RecursionError, SettingError) as error:
        raise PayloadError(f"the experiment in the request cannot be used: {error}") from error
    return Request(
        run,
        experiment,
        tuple(str(name) for name in classes),
        (_count(shape[0], "image-shape"), _count(shape[1], "image-shape"), _count(shape[2], "image-shape")),
        _count(about.get("round"), "round"),
        _unpack(records, limit),
    )


def pack_reply(run: str, round: int, reply: Reply) -> RecordDict:
    """The records of a client's answer to a training request."""
    report = reply.report
    numbers: dict[str, Any] = {"samples": report.samples, "steps": report.steps, "seconds": float(report.seconds)}
    if report.loss is not None:
        numbers["loss"] = float(report.loss)
    about = ConfigRecord({"run": run, "round": round, "client": reply.client})
    return RecordDict({"about": about, "report": MetricRecord(numbers), "payload": _pack(reply.payload)})


def unpack_reply(records: RecordDict, *, client: int, run: str, round: int, limit: int) -> Reply:
    """The answer of the client that was asked; a PayloadError says what is wrong with any other."""
    _raise_refusal(records)
    _check_sender(records, client=client, run=run, round=round)
    numbers = _record(records, "report", MetricRecord)
    if unknown := sorted(set(numbers) - {"samples", "steps", "seconds", "loss"}):
        raise PayloadError(f"the report holds an unknown number {unknown[0][:_NAME_LIMIT]!r}")
    loss, seconds = numbers.get("loss"), numbers.get("seconds")
    if loss is not None and not isinstance(loss, float):
        raise PayloadError(f"the report's loss is not a number but {type(loss).__name__}")
    if not isinstance(seconds, float) or not 0 <= seconds < _SECONDS_LIMIT:
        raise PayloadError("the report's seconds are not a positive number")
    samples = _count(numbers.get("samples"), "samples")
    if samples < 1:
        raise PayloadError("the report speaks of a train set without samples")
    report = Report(samples, _count(numbers.get("steps"), "steps"), loss, seconds)
    return Reply(client, _unpack(records, limit), report)


def pack_evaluation(run: str, round: int, evaluation: Evaluation) -> RecordDict:
    """The records of a client's answer to an evaluation request."""
    counts = {"samples": evaluation.samples, "correct": evaluation.correct}
    about = ConfigRecord({"run": run, "round": round, "client": evaluation.client})
    return RecordDict(
        {"about": about, "counts": MetricRecord(dict(counts)), "others": MetricRecord(dict(evaluation.others))}
    )


def unpack_evaluation(records: RecordDict, *, client: int, run: str, round: int) -> Evaluation:
    """The evaluation of the client that was asked, or a PayloadError."""
    _raise_refusal(records)
    _check_sender(records, client=client, run=run, round=round)
    counts, others = _record(records, "counts", MetricRecord), _record(records, "others", MetricRecord)
    if len(others) > _OTHERS_LIMIT:
        raise PayloadError(f"the evaluation counts for {len(others)} further predictors; at most {_OTHERS_LIMIT}")
    samples, correct = _count(counts.get("samples"), "samples"), _count(counts.get("correct"), "correct")
    further = {str(name)[:_NAME_LIMIT]: _count(value, "correct") for name, value in others.items()}
    if samples < 1 or any(count > samples for count in (correct, *further.values())):
        raise PayloadError(f"the evaluation counts {correct} correct predictions of {samples}")
    return Evaluation(client, samples, correct, further)


class Refused(FedL2GError):
    """A node would not or could not do what it was asked; the message is the node's own."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def pack_refusal(error: FedL2GError) -> RecordDict:
    """The records that tell the server why a request was not carried out."""
    return RecordDict({"refusal": ConfigRecord({"kind": type(error).__name__, "message": str(error)[-_REASON_LIMIT:]})})


def _raise_refusal(records: RecordDict) -> None:
    if "refusal" in records:
        refusal = _record(records, "refusal", ConfigRecord)
        kind, message = refusal.get("kind"), refusal.get("message")
        if not isinstance(kind, str) or not isinstance(message, str) or not message.strip():
            raise PayloadError("the refusal that arrived gives no reason")
        raise Refused(kind[:_NAME_LIMIT], message[-_REASON_LIMIT:])


def _check_sender(records: RecordDict, *, client: int, run: str, round: int) -> None:
    about = _record(records, "about", ConfigRecord)
    found = (about.get("client"), about.get("run"), about.get("round"))
    if found != (client, run, round):
        said = ", ".join(
            f"{name} {str(value)[:_NAME_LIMIT]}" for name, value in zip(("client", "run", "round"), found, strict=True)
        )
        raise PayloadError(
            f"the reply says it is of {said}, but client {client} was asked in round {round} of run {run}"
        )


def pack_identity(client: int) -> RecordDict:
    """The records by which a node says which client lives on it."""
    return RecordDict({"identity": ConfigRecord({"client": client})})


def unpack_identity(records: RecordDict, clients: int) -> int:
    """Which client lives on a node; an unknown number is refused."""
    _raise_refusal(records)
    client = _record(records, "identity", ConfigRecord).get("client")
    if not isinstance(client, int) or isinstance(client, bool) or not 0 <= client < clients:
        raise PayloadError(
            f"it claims to be client {str(client)[:_NAME_LIMIT]}, but clients are numbered 0 to {clients - 1}"
        )
    return client


def _pack(payload: Payload) -> ArrayRecord:
    data = to_bytes(payload)
    return ArrayRecord({"payload": Array("uint8", (len(data),), _SERIALISATION, data)})


def _unpack(records: RecordDict, limit: int) -> Payload:
    arrays = _record(records, "payload", ArrayRecord)
    if set(arrays) != {"payload"}:
        raise PayloadError("the message must hold exactly one array, the payload")
    array = arrays["payload"]
    if array.stype != _SERIALISATION or array.dtype != "uint8" or tuple(array.shape) != (len(array.data),):
        raise PayloadError(f"the payload's declared form ({array.dtype}, {array.shape}) is not what arrived")
    if len(array.data) > limit:
        raise PayloadError(f"the payload has {len(array.data)} bytes; at most {limit} are accepted")
    return from_bytes(array.data)


def _record(records: RecordDict, name: str, kind: type[Any]) -> Any:
    record = records.get(name)
    if not isinstance(record, kind):
        raise PayloadError(f"the message holds no {kind.__name__} named {name!r}")
    return record


def _count(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _COUNT_LIMIT:
        raise PayloadError(f"{name} must be a whole number from 0 on, not {str(value)[:_NAME_LIMIT]}")
    return value
