"""A table of malformed messages in both directions: each is refused with a sentence that names the part at fault."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="the optional extra `flower` is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedl2g.engines.base import Evaluation
from fedl2g.engines.flower import identity, messages
from fedl2g.engines.flower.identity import Refused
from fedl2g.engines.flower.messages import Kept, Request
from fedl2g.errors import PayloadError, RunError
from fedl2g.experiment import Experiment
from fedl2g.methods.base import Reply, Report
from fedl2g.methods.registry import get_method, method_names
from fedl2g.payload import tensors_spec, to_bytes
from fedl2g.round.inbox import Inbox
from fedl2g.round.timing import Timing
from fedl2g.schema import image_schema

RUN, ROUND, CLIENT, CLIENTS, LIMIT = "ab12", 3, 1, 4, 4096
PAYLOAD = {"ids": torch.tensor([0, 2]), "rows": torch.ones(2, 3)}
EXPERIMENT = Experiment(samples=100, image_size=16, rounds=5, method={"name": "fedl2g-f", "warmup_rounds": 0})
INPUTS = image_schema(1, 16, 16).to_json()
REQUEST = Request(RUN, EXPERIMENT, ("zero", "one"), image_schema(1, 16, 16), ROUND, PAYLOAD, best=2)
REPLY = Reply(CLIENT, PAYLOAD, Report(samples=10, steps=2, loss=0.5, seconds=1.0))
SENDER = {"client": CLIENT, "run": RUN, "round": ROUND}
ESCAPES = ["\x1b[2J", "a\nb", "a\r\nb", "\x00", "\u202eabc", "", " ", "x" * 300]


def read_reply(records: RecordDict) -> Reply:
    """A reply as the server reads it: the message, then the checks of the inbox."""
    reply = messages.unpack_reply(records, **SENDER, limit=LIMIT)
    traits = get_method("fedl2g-f").traits
    Inbox(traits, tensors_spec(PAYLOAD), Timing(False, 1), patient=True).check(reply)
    return reply


def read_trained(records: RecordDict) -> Evaluation | None:
    """A reply with the evaluation after it, as the server reads them."""
    trained, evaluated = messages.split_trained(records)
    read_reply(trained)
    return None if evaluated is None else messages.unpack_evaluation(evaluated, **SENDER)


@dataclass(frozen=True)
class Kind:
    """One kind of message: how it is packed, and how it is read."""

    pack: Callable[[], RecordDict]
    read: Callable[[RecordDict], Any]
    fields: dict[tuple[str, str], list[Any]]  # (record, key) -> values that are refused


NO_COUNT = [True, False, -1, 1.0, math.nan, math.inf, 10**9 + 1, 2**62, [1], []]
NO_SHARE = [True, 1, 0, -0.5, 1.0001, math.nan, math.inf, -math.inf, [0.5]]
ABOUT = {
    ("about", "client"): [True, 1.0, "1", b"1", 0, 2, -1, [1]],
    ("about", "run"): ["", "ab13", "AB12", "ab12 ", "ab12\n", b"ab12", 12, ["ab12"], "²³"],
    ("about", "round"): [3.0, True, 2, 4, -3, "3", [3]],
}
COUNTS = {("counts", "samples"): [0, *NO_COUNT], ("counts", "correct"): [11, *NO_COUNT]}
SCORES = {("scores", name): NO_SHARE for name in ("balanced-accuracy", "macro-f1")}
EVALUATION = Evaluation(CLIENT, 10, 5, {"head": 4}, 0.5, 0.5)
VALIDATED = Evaluation(CLIENT, 10, 5, {"head": 4}, 0.5, 0.5, 6, 3)
KINDS = {
    "request": Kind(
        lambda: messages.pack_request(REQUEST),
        lambda records: messages.unpack_request(records, LIMIT),
        {
            ("about", "run"): ["²³", "", "a/b", "..", "a b", "ab\n", "é", "x" * 65, "-rf", b"ab12", 12, True, ["a"]],
            ("about", "classes"): [
                [], ["one"], ["one", "one"], ["one", "two", "one"], "onetwo", [1, 2], [True, False], [1.0, 2.0],
                *([name, "one"] for name in ESCAPES), 2, b"ab",
            ],
            ("about", "inputs"): [
                *(
                    json.dumps({**INPUTS, "shape": shape})
                    for shape in (
                        [], [1, 16], [1, 16, 16, 1], [0, 16, 16], [1, -16, 16], [1, 2**16 + 1, 16], [1.0, 16.0, 16.0],
                        [True, True, True], ["1", "16", "16"], "1,16,16", 16, [2**62, 1, 1],
                    )
                ),
                json.dumps({**INPUTS, "kind": "film"}), json.dumps({**INPUTS, "more": 1}), "{}", "[" * 10_000, 16, b"x",
            ],
            ("about", "round"): [True, -1, 3.0, 6, 10**6, 2**62, "3", b"3", [3], math.nan],
            ("about", "best"): [True, -1, 2.0, 4, 6, 2**62, "2", [2], math.nan],
            ("about", "experiment"): ["", "{}", "[]", "null", "1", '"x"', "{", "[" * 10_000, " " * 2**21, 1, b"{}"],
        },
    ),
    "reply": Kind(
        lambda: messages.pack_reply(RUN, ROUND, REPLY),
        read_reply,
        {
            **ABOUT,
            ("report", "samples"): [0, *NO_COUNT],
            ("report", "steps"): NO_COUNT,
            ("report", "seconds"): [True, 1, -1.0, 1e10, math.nan, math.inf, -math.inf, [1.0]],
            ("report", "loss"): [True, 1, -5.0, -1e-9, 1e29, 1e9, math.nan, math.inf, -math.inf, [0.5]],
        },
    ),
    "evaluation": Kind(
        lambda: messages.pack_evaluation(RUN, ROUND, EVALUATION),
        lambda records: messages.unpack_evaluation(records, **SENDER),
        {**ABOUT, **COUNTS, **SCORES, ("others", "head"): [11, *NO_COUNT]},
    ),
    "validated evaluation": Kind(
        lambda: messages.pack_evaluation(RUN, ROUND, VALIDATED),
        lambda records: messages.unpack_evaluation(records, **SENDER, validated=True),
        {("counts", "validation-samples"): [0, *NO_COUNT], ("counts", "validation-correct"): [7, *NO_COUNT]},
    ),
    "evaluated reply": Kind(
        lambda: messages.pack_trained(RUN, ROUND, REPLY, EVALUATION),
        read_trained,
        {**ABOUT, **COUNTS, **SCORES, ("others", "head"): [11, *NO_COUNT], ("report", "steps"): NO_COUNT},
    ),
    "kept": Kind(
        lambda: messages.pack_kept(RUN, ROUND, Kept(CLIENT)),
        lambda records: messages.unpack_kept(records, **SENDER),
        ABOUT,
    ),
    "identity": Kind(
        lambda: identity.pack_identity(CLIENT),
        lambda records: identity.unpack_identity(records, CLIENTS),
        {("identity", "client"): [True, False, -1, 4, 2**62, 1.0, "1", b"\x01", [1], math.nan]},
    ),
    "refusal": Kind(
        lambda: identity.pack_refusal(RunError("the disk is full")),
        lambda records: identity.unpack_identity(records, CLIENTS),
        {
            ("refusal", "kind"): [1, True, b"RunError", ["RunError"], *ESCAPES],
            ("refusal", "message"): [1, True, b"full", ["full"], "", " ", "\n\t"],
        },
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    kind: str
    what: str
    spoil: Callable[[RecordDict], object]


def spoiled_values(name: str, kind: Kind) -> Iterator[Case]:
    """Every field with every value it may not have, and without a value."""
    for (record, key), values in kind.fields.items():
        for value in values:
            yield Case(name, f"{record}.{key} = {value!r:.30}", lambda r, a=record, k=key, v=value: r[a].update({k: v}))
        if key not in ("best", "loss", "head"):
            yield Case(name, f"no {record}.{key}", lambda r, a=record, k=key: r[a].pop(k))


def spoiled_records(name: str, kind: Kind) -> Iterator[Case]:
    """Every record missing, of another kind, with an unknown entry; and a record that nobody asked for."""
    others = {"config": ConfigRecord({"run": RUN}), "metrics": MetricRecord({"x": 1}), "arrays": ArrayRecord({})}
    for record, content in kind.pack().items():
        yield Case(name, f"no {record}", lambda r, a=record: r.pop(a))
        for other, instead in others.items():
            if type(content) is not type(instead):
                yield Case(name, f"{record} of {other}", lambda r, a=record, i=instead: r.update({a: i}))
        if record not in ("payload", "metrics", "others"):
            for key in ("extra", "\x1b[31m", "", "x" * 1000):
                yield Case(name, f"{record}.{key[:9]!r}", lambda r, a=record, k=key: r[a].update({k: 1}))
    for extra, content in others.items():
        yield Case(name, f"and {extra}", lambda r, c=content: r.update({"extra": c}))
    yield Case(name, "and an empty name", lambda r: r.update({"": others["config"]}))


def spoiled_names() -> Iterator[Case]:
    """Names that a site gives to its method's numbers and predictors."""
    for key in [*ESCAPES, "undeclared"]:
        yield Case("reply", f"metrics.{key[:9]!r}", lambda r, k=key: r["metrics"].update({k: 0.5}))
    yield Case("reply", "17 metrics", lambda r: r["metrics"].update({f"n{i}": 0.5 for i in range(17)}))
    for key in [*ESCAPES, "honest clients"]:
        yield Case("evaluation", f"others.{key[:9]!r}", lambda r, k=key: r["others"].update({k: 1}))
    yield Case("evaluation", "17 others", lambda r: r["others"].update({f"n{i}": 1 for i in range(17)}))
    yield Case("evaluation", "validation", lambda r: r["counts"].update({"validation-samples": 1}))


def spoiled_payloads() -> Iterator[Case]:
    """Payloads whose declared form is not theirs, and bytes that are no payload."""
    data = to_bytes(PAYLOAD)
    arrays = {
        "pickle": Array("uint8", (len(data),), "pickle", data),
        "numpy": Array("uint8", (len(data),), "numpy.ndarray", data),
        "dtype": Array("float32", (len(data),), "safetensors", data),
        "object": Array("object", (len(data),), "safetensors", data),
        "shape": Array("uint8", (len(data) + 1,), "safetensors", data),
        "two dimensions": Array("uint8", (len(data), 1), "safetensors", data),
        "cut": Array("uint8", (len(data) - 1,), "safetensors", data[:-1]),
        "longer": Array("uint8", (len(data) + 1,), "safetensors", data + b"\0"),
        "empty": Array("uint8", (0,), "safetensors", b""),
        "header": Array("uint8", (8,), "safetensors", (2**63).to_bytes(8, "little")),
        "too large": Array("uint8", (LIMIT + 1,), "safetensors", bytes(LIMIT + 1)),
    }
    for kind in ("request", "reply"):
        for what, array in arrays.items():
            yield Case(kind, f"payload: {what}", lambda r, a=array: r.update(payload=ArrayRecord({"payload": a})))
        good = Array("uint8", (len(data),), "safetensors", data)
        for names in ((), ("other",), ("payload", "more"), ("\x1b[2J",)):
            named = ArrayRecord(dict.fromkeys(names, good))
            yield Case(kind, f"payload named {names!r:.20}", lambda r, a=named: r.update(payload=a))


def spoiled_experiments() -> Iterator[Case]:
    """Settings that a lenient reader would convert, complete or ignore."""
    settings = json.loads(messages.pack_request(REQUEST)["about"]["experiment"])  # type: ignore[index, arg-type]
    changes: dict[str, Any] = {
        "rounds": ["5", 5.0, True, 0, -1, None], "local_epochs": ["1", 1.0, True, 0, -1], "batch_size": ["10", 10.0, 0],
        "client_lr": ["0.01", 1, 0.0, -1.0, None], "clients": ["20", 20.0, 0, 10**9], "seed": ["0", 0.0, False, -1],
        "dataset": ["os:system", 1, None], "models": ["os:system", 3], "reshuffle": ["yes", 1, 0], "extra": [1],
        "method": ["fedl2g-f", {"name": "os:system"}, {"name": "nobody"}, {}, None], "noise": [0.1, {"std": "0.1"}],
    }  # fmt: skip
    for key, values in changes.items():
        for value in values:
            text = json.dumps({**settings, key: value})
            yield Case("request", f"{key} = {value!r:.20}", lambda r, t=text: r["about"].update(experiment=t))
    for key in settings:
        text = json.dumps({name: value for name, value in settings.items() if name != key})
        yield Case("request", f"no {key}", lambda r, t=text: r["about"].update(experiment=t))


def table() -> list[Case]:
    cases = [
        case for name, kind in KINDS.items() for case in (*spoiled_values(name, kind), *spoiled_records(name, kind))
    ]
    return [*cases, *spoiled_names(), *spoiled_payloads(), *spoiled_experiments()]


TABLE = table()


@pytest.mark.parametrize("kind", KINDS)
def test_the_messages_of_the_table_are_accepted_as_they_are(kind: str) -> None:
    if kind == "refusal":
        with pytest.raises(Refused, match="the disk is full"):
            KINDS[kind].read(KINDS[kind].pack())
    else:
        KINDS[kind].read(KINDS[kind].pack())


def test_every_malformed_message_is_refused_with_a_printable_sentence() -> None:
    accepted, unclear, read = [], [], set()
    for case in TABLE:
        kind = KINDS[case.kind]
        records = kind.pack()
        try:
            case.spoil(records)
        except (TypeError, ValueError):
            continue  # Flower's records cannot carry it
        read.add((case.kind, case.what))
        try:
            kind.read(records)
        except PayloadError as error:
            if not str(error).isprintable() or not 20 < len(str(error)) < 2000:
                unclear.append((case.kind, case.what, str(error)))
        except Refused:
            accepted.append((case.kind, case.what))
        else:
            accepted.append((case.kind, case.what))
    assert accepted == []
    assert unclear == []
    assert len(read) >= 450


def test_control_characters_of_a_refusal_do_not_reach_the_log() -> None:
    records = identity.pack_refusal(RunError("a\x1b[2Jb\nline two\r\x00"))
    with pytest.raises(Refused) as refused:
        identity.unpack_identity(records, CLIENTS)
    assert str(refused.value) == "a [2Jb\nline two\n "


@pytest.mark.parametrize("name", method_names())
def test_the_experiment_of_every_method_arrives_as_it_was_sent(name: str) -> None:
    sent = Request(RUN, Experiment(method={"name": name}), ("a", "b"), image_schema(1, 8, 8), 1, {})
    assert messages.unpack_request(messages.pack_request(sent), LIMIT).experiment == sent.experiment
