"""Thousands of malformed Flower messages, in both directions: refused clearly, or sound by an independent judgement."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fuzz_helpers import Fuzz, replaced, spoiled_text, strange

pytest.importorskip("flwr", reason="the optional extra `flower` is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedl2g.engines.base import Evaluation
from fedl2g.engines.flower import identity, messages
from fedl2g.engines.flower.messages import Request
from fedl2g.experiment import Experiment
from fedl2g.methods.base import Reply, Report
from fedl2g.payload import Payload, to_bytes
from fedl2g.schema import image_schema

RUN, ROUND, CLIENT, CLIENTS, LIMIT = "ab12", 3, 1, 4, 4096
PAYLOAD: Payload = {"ids": torch.tensor([0, 2]), "rows": torch.ones(2, 3)}
REQUEST = Request(RUN, Experiment(samples=100, image_size=16), ("zero", "one"), image_schema(1, 16, 16), ROUND, PAYLOAD)
ABOUT: dict[str, Any] = dict(messages.pack_request(REQUEST)["about"])  # type: ignore[arg-type]


def _value(draw: random.Random, value: Any) -> Any:
    """Another value of a kind that Flower's records can carry: a number, a text, bytes, or a list of one of them."""
    found = strange(draw)
    if isinstance(value, str) and draw.random() < 0.5:
        return spoiled_text(draw, value)
    if isinstance(value, list) and value and draw.random() < 0.5:
        return [*value[: draw.randrange(len(value) + 1)], *value][: draw.choice([0, 1, 2, 3, 5])]
    if found is None or isinstance(found, dict):
        return draw.choice([b"", b"\xff\x00", "None", [1.5, math.nan], [-1], [2**62], [True], ["", "\x00"]])
    if isinstance(found, list):
        kind = draw.choice([int, float, str, bool, bytes])
        return [kind() for _ in range(draw.randrange(5))]
    return found if not isinstance(found, int) or abs(found) < 2**63 else 2**62


def _spoil(draw: random.Random, records: RecordDict) -> RecordDict:
    """A copy with one part replaced, removed, added, or turned into a record of another kind."""
    spoiled = RecordDict(dict(records))
    name = draw.choice(sorted(spoiled))
    record: Any = spoiled[name]
    how = draw.random()
    if how < 0.1:
        del spoiled[name]
        return spoiled
    if how < 0.2:
        other = draw.choice([ConfigRecord({"run": RUN}), MetricRecord({"samples": 1}), ArrayRecord({})])
        spoiled[draw.choice([name, "extra", "refusal"])] = other
        return spoiled
    if isinstance(record, ArrayRecord):
        spoiled[name] = _arrays(draw)
        return spoiled
    values = dict(record)
    key = draw.choice([*sorted(values), "extra"])
    if how < 0.3:
        values.pop(key, None)
    else:
        values[key] = _value(draw, values.get(key))
    if isinstance(record, MetricRecord):
        values = {k: v if type(v) in (int, float) else draw.choice([-1, 0, 1.5, math.nan, math.inf, [1], [0.5]])
                  for k, v in values.items()}  # fmt: skip
    spoiled[name] = type(record)(values)
    return spoiled


def _arrays(draw: random.Random) -> ArrayRecord:
    data = bytearray(to_bytes(PAYLOAD))
    how = draw.randrange(6)
    if how == 0:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    elif how == 1:
        data = data[: draw.randrange(len(data))]
    elif how == 2:
        data += bytes(draw.choice([1, LIMIT]))
    elif how == 3:
        data[:8] = draw.choice([0, 2**20, 2**40, 2**64 - 1]).to_bytes(8, "little")
    honest = draw.random() < 0.7
    shape = (len(data),) if honest else draw.choice([(), (0,), (2**40,), (len(data), 1), (-1,), (1, 2**62)])
    dtype = "uint8" if honest or draw.random() < 0.5 else draw.choice(["object", "float64", "", "O"])
    stype = "safetensors" if draw.random() < 0.9 else draw.choice(["numpy.ndarray", "pickle", ""])
    array = Array(dtype, shape, stype, bytes(data))
    return ArrayRecord({"payload": array, **({"more": array} if draw.random() < 0.1 else {})})


def _plain(payload: Payload) -> bool:
    return all(isinstance(n, str) and isinstance(t, torch.Tensor) and t.nbytes <= LIMIT for n, t in payload.items())


def _whole(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**40


def _sound_reply(reply: Reply) -> bool:
    report = reply.report
    return (
        reply.client == CLIENT
        and _plain(reply.payload)
        and _whole(report.samples)
        and _whole(report.steps)
        and type(report.seconds) is float
        and 0 <= report.seconds < math.inf
        and (report.loss is None or type(report.loss) is float)
    )


def _sound_evaluation(found: Evaluation) -> bool:
    counts = [found.correct, *found.others.values()]
    return found.client == CLIENT and _whole(found.samples) and all(_whole(c) and c <= found.samples for c in counts)


def _sound_request(found: Request) -> bool:
    again = messages.unpack_request(messages.pack_request(found), LIMIT)
    return (
        found.run.isalnum()
        and all(map(_whole, (found.round, *found.inputs.shape)))
        and all(type(name) is str for name in found.classes)
        and _plain(found.payload)
        and again.experiment.fingerprint == found.experiment.fingerprint
        and again.digest == found.digest
    )


def _sound_identity(client: int) -> bool:
    return type(client) is int and 0 <= client < CLIENTS


Case = tuple[RecordDict, Callable[[RecordDict], Any], Callable[[Any], bool]]
REPLY = Reply(CLIENT, PAYLOAD, Report(samples=10, steps=2, loss=0.5, seconds=1.0))
CASES: dict[str, Case] = {
    "reply": (
        messages.pack_reply(RUN, ROUND, REPLY),
        lambda r: messages.unpack_reply(r, client=CLIENT, run=RUN, round=ROUND, limit=LIMIT),
        _sound_reply,
    ),
    "evaluation": (
        messages.pack_evaluation(RUN, ROUND, Evaluation(CLIENT, 10, 5, {"head": 4}, 0.5, 0.5)),
        lambda r: messages.unpack_evaluation(r, client=CLIENT, run=RUN, round=ROUND),
        _sound_evaluation,
    ),
    "request": (messages.pack_request(REQUEST), lambda r: messages.unpack_request(r, LIMIT), _sound_request),
    "identity": (identity.pack_identity(CLIENT), lambda r: identity.unpack_identity(r, CLIENTS), _sound_identity),
}


@pytest.mark.parametrize("kind", CASES)
def test_messages(kind: str) -> None:
    records, unpack, sound = CASES[kind]
    assert sound(unpack(records))
    draw, fuzz = random.Random(9), Fuzz()
    for _ in range(1500):
        spoiled = _spoil(draw, records)
        if draw.random() < 0.3 and len(spoiled):
            spoiled = _spoil(draw, spoiled)
        fuzz(lambda spoiled=spoiled: unpack(spoiled), sound, spoiled)  # type: ignore[misc]
    fuzz.finish(1500, refused=0.4)


def test_experiments_in_requests() -> None:
    """A site reads the server's experiment as it would read a stranger's file."""
    draw, fuzz = random.Random(10), Fuzz()
    settings = json.loads(ABOUT["experiment"])
    for _ in range(1500):
        how = draw.random()
        text = json.dumps(replaced(draw, settings)) if how < 0.6 else spoiled_text(draw, ABOUT["experiment"])
        text = draw.choice("[{") * 50_000 if how > 0.98 else text
        records = RecordDict(dict(messages.pack_request(REQUEST)))
        records["about"] = ConfigRecord({**ABOUT, "experiment": text})
        fuzz(lambda r=records: messages.unpack_request(r, LIMIT), _sound_request, text)  # type: ignore[misc]
    fuzz.finish(1500, refused=0.6)


def test_a_payload_above_the_limit_is_refused_before_it_is_read() -> None:
    data = to_bytes({"rows": torch.zeros(LIMIT)})
    records = RecordDict(dict(CASES["reply"][0]))
    records["payload"] = ArrayRecord({"payload": Array("uint8", (len(data),), "safetensors", data)})
    with pytest.raises(messages.PayloadError, match=f"at most {LIMIT}"):
        CASES["reply"][1](records)
