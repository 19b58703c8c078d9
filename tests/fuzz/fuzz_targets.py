"""What the fuzzer feeds: a parser each of files or messages, and valid examples to start from.

A target takes any bytes. It may refuse them by an error of the package; any other exception is a finding.
"""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedl2g.datasets import Partition, load_dataset, make_partition
from fedl2g.datasets.tables import Roles
from fedl2g.deploy.coordinator import read_coordinator
from fedl2g.deploy.predict import open_model
from fedl2g.deploy.registered import read_keys
from fedl2g.deploy.site_file import read_site
from fedl2g.engines.base import Evaluation
from fedl2g.engines.flower import messages
from fedl2g.engines.flower.messages import Request
from fedl2g.engines.flower.records import pack_records, unpack_records
from fedl2g.engines.flower.store import NodeStore, TrainedRound, _digest, client_folder, stored_model
from fedl2g.errors import FedL2GError
from fedl2g.experiment import Experiment, overlay, parse_override
from fedl2g.methods.base import Reply, Report
from fedl2g.paper.study import Study
from fedl2g.payload import check_payload, class_vector_spec, from_bytes, to_bytes
from fedl2g.references import is_reference, parse_reference, references_in
from fedl2g.round.record import RoundRecord
from fedl2g.runs.checkpoint import Checkpoint, _seal
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.overview import overview
from fedl2g.runs.plan import PLAN, read_plan
from fedl2g.runs.result import RunResult
from fedl2g.schema import image_schema
from forging import ABOUT, files_of, line_of, reseal, sealed_again

_LIMIT = 2**16
_PAYLOAD = {"ids": torch.tensor([0, 2]), "rows": torch.ones(2, 3)}
_EXPERIMENT = Experiment(method="feddistill", samples=100, image_size=16, clients=4, rounds=5)
_RECORD = RoundRecord(1, [0, 1], loss=1.5, client_losses={0: 1.0}, refused={1: "NaN"}, server={"guide_step": 0.1})
_RESULT = RunResult("m", 0, "finished", 5, 0.5, 3, 0.4, 0.4, 0.1, 1.0, {}, 0.1, 0.1, 1.0, 1.0, "here")
_KINDS = {"about": ConfigRecord, "report": ConfigRecord, "refusal": ConfigRecord, "identity": ConfigRecord}
_PARTITION = {"train": [[0, 1, 2], [6, 7]], "test": [[3, 4], [8]]}
_LABELS = np.arange(12) % 3


@dataclass(frozen=True)
class Target:
    """A parser, and inputs that it accepts."""

    feed: Callable[[bytes], object]
    examples: tuple[bytes, ...]

    def __call__(self, data: bytes) -> bool:
        """Whether the input was accepted; raises what no input should cause."""
        try:
            self.feed(data)
        except FedL2GError:
            return False
        return True


_folder: list[Path] = []


def folder() -> Path:
    """An empty folder in memory, where there is one."""
    if not _folder:
        base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        _folder.append(Path(tempfile.mkdtemp(prefix="fuzz-", dir=base)))
    shutil.rmtree(_folder[0], ignore_errors=True)
    _folder[0].mkdir()
    return _folder[0]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _payload(data: bytes) -> None:
    check_payload(from_bytes(data), class_vector_spec(3, 3, torch.float32))


def _to_json(records: RecordDict) -> bytes:
    """A message as text, which a fuzzer changes more easily than Flower's own form."""

    def plain(record: Any) -> Any:
        if isinstance(record, ArrayRecord):
            arrays = {name: [a.dtype, list(a.shape), a.stype, a.data] for name, a in record.items()}
            return {"arrays": {n: [*v[:3], base64.b64encode(v[3]).decode()] for n, v in arrays.items()}}
        return {"metrics" if isinstance(record, MetricRecord) else "config": dict(record)}

    return json.dumps({name: plain(record) for name, record in records.items()}).encode()


def _from_json(data: bytes) -> RecordDict | None:
    """A message as Flower would hand it over; None if Flower itself would refuse it."""
    try:
        records: dict[str, Any] = {}
        for name, content in json.loads(data).items():
            ((kind, values),) = content.items()
            if kind == "arrays":
                arrays = {
                    str(n): Array(str(d), tuple(map(int, shape)), str(s), base64.b64decode(raw))
                    for n, (d, shape, s, raw) in values.items()
                }
                records[name] = ArrayRecord(arrays)  # type: ignore[arg-type]
            else:
                records[name] = MetricRecord(values) if kind == "metrics" else ConfigRecord(values)
        return RecordDict(records)
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError, KeyError):
        return None


def _message(unpack: Callable[[RecordDict], object]) -> Callable[[bytes], None]:
    def feed(data: bytes) -> None:
        if (records := _from_json(data)) is not None:
            unpack(records)

    return feed


def _in_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], None]:
    """A parser of a file with this name in a folder of its own."""

    def feed(data: bytes) -> None:
        place = folder()
        (place / name).write_bytes(data)
        read(place)

    return feed


def _sealed(path: Path) -> None:
    """What the fuzzer made of a file, sealed anew: without it, all that is tested is the seal."""
    with suppress(ValueError, RecursionError):
        values = json.loads(path.read_bytes())
        if isinstance(values, dict):
            sealed_again(path, values, path.parent if path.name == "result.json" else None)


def _run(place: Path) -> None:
    (place / "partition.json").write_text(json.dumps(_PARTITION))
    (place / "experiment.toml").write_text(_EXPERIMENT.to_toml())
    with suppress(ValueError, RecursionError, TypeError):
        values = json.loads((place / "run.json").read_bytes())
        if isinstance(values, dict):
            sealed_again(place / "run.json", values | {"files": files_of(place)})
    overview(RunDirectory.open(place))


def _result(place: Path) -> None:
    reseal(place)
    _sealed(place / "result.json")
    RunDirectory(place).result()


def _plan(place: Path) -> None:
    _sealed(place / PLAN)
    read_plan(place)


def _study(place: Path) -> None:
    (place / "smoke").mkdir()
    (place / "study.json").rename(place / "smoke" / "study.json")
    _sealed(place / "smoke" / "study.json")
    Study.open(place, "smoke")


def _checkpoint(place: Path) -> None:
    with suppress(ValueError, LookupError, TypeError, RecursionError):
        state = json.loads((place / "state.json").read_bytes())["state"]
        (place / "state.json").write_text(json.dumps({"state": state, "digest": _seal(state)}))
    found = Checkpoint(place)
    found.belongs_to(_EXPERIMENT)
    found.verify()


def _store(place: Path) -> None:
    """A model in a site's store; what holds together is sealed anew."""
    kept = client_folder(place, "ab12", 1)
    kept.make()
    path = kept.path / "round-000003.safetensors"
    (place / "state").rename(path)
    with suppress(ValueError, SafetensorError), safe_open(path, framework="pt") as file:
        about = {name: value for name, value in (file.metadata() or {}).items() if name != "digest"}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        save_file(tensors, path, about | {"digest": _digest(tensors, about)})
    stored_model(kept, "last")
    NodeStore(place, "ab12", "x", 1).read(3)


def _experiment(data: bytes) -> None:
    made = Experiment.from_toml(_text(data))
    assert Experiment.from_toml(made.to_toml()).fingerprint == made.fingerprint


def _override(data: bytes) -> None:
    Experiment(**overlay({}, dict([parse_override(_text(data))])))


def _reference(data: bytes) -> None:
    text = _text(data)
    references_in({"a": [text, {"b": text}]})
    if is_reference(text):
        assert parse_reference(text)


def _history(place: Path) -> None:
    content = (place / "metrics.jsonl").read_bytes()
    reseal(place)
    with suppress(ValueError, RecursionError):
        lines = [json.loads(line) for line in content.splitlines()]
        if all(isinstance(line, dict) for line in lines):
            (place / "metrics.jsonl").write_bytes(b"".join(line_of(place, line) for line in lines))
    for record in RunDirectory(place).records.read().history:
        assert RoundRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record


def _partition(place: Path) -> None:
    found = make_partition(f"file:{place / 'split.json'}", _LABELS, None, clients=2, classes=3, seed=0)
    held = [index for side in (*found.train, *found.test) for index in side.tolist()]
    assert len(set(held)) == len(held)
    assert set(held) <= set(range(12))


def _dataset(name: str, roles: Roles | None = None) -> Callable[[Path], None]:
    def read(place: Path) -> None:
        found = load_dataset(str(place / name), data_dir=place / "cache", roles=roles)
        labels = np.asarray(found.labels)
        assert 0 <= labels.min() <= labels.max() < found.classes

    return read


def _npz() -> bytes:
    file = io.BytesIO()
    images = np.arange(12 * 16, dtype=np.uint8).reshape(12, 4, 4)
    np.savez(file, images=images, labels=_LABELS, class_names=np.array(["a", "b", "c"]))
    return file.getvalue()


def _state_file() -> bytes:
    place = folder()
    store = NodeStore(place, "ab12", "x", 1)
    store.write(TrainedRound(3, {"w": torch.ones(2)}, _ANSWER, "request", {"guide": torch.zeros(3)}))
    return (store.directory / "round-000003.safetensors").read_bytes()


_STATE = {"state": {"format": 2, "fingerprint": "x", "rounds": 5, "round": 1, "files": {}, "values": {"history": []}}}
_MODEL = {"classes": ["a", "b"], "schema": image_schema(1, 4, 4).to_json(), "type": "uint8", "scaled": False}
_SITE = b"""client-id = 0
name = "one"
model = "small_cnn"
data = "data.csv"
label = "label"

[limits]
epochs = 2
image-shape = [1, 16, 16]

[superlink]
address = "127.0.0.1:9092"
root-certificates = "ca.crt"
private-key = "node_key"
"""
_COORDINATOR = b"""method = "fedl2g-f"
rounds = 60

[federation]
classes = ["a", "b"]
image_shape = [1, 16, 16]
sites = ["one", "two"]
address = "127.0.0.1:9092"
"""
_KEY = ec.derive_private_key(20, ec.SECP384R1()).public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
_KEYS = b'one = "' + _KEY + b'"\n'
_CSV = b"age,weight,label\n1,2.5,a\n2,3.5,b\n3,4.5,a\n4,1.5,b\n5,2.5,a\n6,3.5,b\n"
_SENT = Request("ab12", _EXPERIMENT, ("zero", "one"), image_schema(1, 16, 16), 3, _PAYLOAD)
_ANSWER = Reply(1, _PAYLOAD, Report(5, 1, 0.5, 1.0))
_SCORES = Evaluation(1, 10, 5, {"head": 4}, 0.5, 0.5)


def _trained(records: RecordDict) -> None:
    trained, evaluated = messages.split_trained(records)
    messages.unpack_reply(trained, client=1, run="ab12", round=3, limit=_LIMIT)
    if evaluated is not None:
        messages.unpack_evaluation(evaluated, client=1, run="ab12", round=3)


TARGETS: dict[str, Target] = {
    "payload": Target(_payload, (to_bytes(_PAYLOAD),)),
    "request": Target(
        _message(lambda records: messages.unpack_request(records, _LIMIT)), (_to_json(messages.pack_request(_SENT)),)
    ),
    "reply": Target(
        _message(lambda records: messages.unpack_reply(records, client=1, run="ab12", round=3, limit=_LIMIT)),
        (_to_json(messages.pack_reply("ab12", 3, _ANSWER)),),
    ),
    "evaluation": Target(
        _message(lambda records: messages.unpack_evaluation(records, client=1, run="ab12", round=3)),
        (_to_json(messages.pack_evaluation("ab12", 3, _SCORES)),),
    ),
    "trained": Target(
        _message(_trained),
        (
            _to_json(messages.pack_trained("ab12", 3, _ANSWER, _SCORES)),
            _to_json(messages.pack_reply("ab12", 3, _ANSWER)),
        ),
    ),
    "experiment": Target(_experiment, (_EXPERIMENT.to_toml().encode(), b'method = "fedl2g-l"\nrounds = 60\n')),
    "override": Target(_override, (b"rounds=60", b"method.server_lr=1", b"models=cnn4", b"noise.std=0.1")),
    "reference": Target(_reference, (b"package.module:name", b"a.b.c:d_e", b"dirichlet:0.1", b"C:\\x")),
    "partition": Target(
        _in_file("split.json", _partition),
        (json.dumps(_PARTITION).encode(), b"[[0, 1, 2, 3], [6, 7, 8]]", b'{"0": [0, 1, 2], "1": [6, 7]}'),
    ),
    "partition.json": Target(lambda data: Partition.from_json(_text(data)), (json.dumps(_PARTITION).encode(),)),
    "metrics": Target(_in_file("metrics.jsonl", _history), (json.dumps(_RECORD.to_dict()).encode() + b"\n",)),
    "run.json": Target(_in_file("run.json", _run), (json.dumps(ABOUT).encode(),)),
    "result.json": Target(_in_file("result.json", _result), (json.dumps(_RESULT.to_dict()).encode(),)),
    "checkpoint": Target(_in_file("state.json", _checkpoint), (json.dumps(_STATE).encode(),)),
    "plan": Target(_in_file(PLAN, _plan), (b'{"runs": [{"run": "a-s0", "method": "a", "seed": 0, "rounds": 5}]}',)),
    "study": Target(
        _in_file("study.json", _study), (b'{"scale": "smoke", "dataset_paths": {}, "settings": {"rounds": 3}}',)
    ),
    "model.json": Target(_in_file("model.json", lambda place: open_model(place)), (json.dumps(_MODEL).encode(),)),
    "store": Target(_in_file("state", _store), (_state_file(),)),
    "envelope": Target(lambda data: unpack_records(data), (pack_records(messages.pack_reply("ab12", 3, _ANSWER)),)),
    "site": Target(_in_file("site.toml", lambda place: read_site(place / "site.toml", trust=False)), (_SITE,)),
    "coordinator": Target(
        _in_file("experiment.toml", lambda place: read_coordinator(place / "experiment.toml")), (_COORDINATOR,)
    ),
    "keys": Target(_in_file("keys.toml", lambda place: read_keys(place / "keys.toml", ("one", "two"))), (_KEYS,)),
    "npz": Target(_in_file("data.npz", _dataset("data.npz")), (_npz(),)),
    "csv": Target(_in_file("data.csv", _dataset("data.csv", Roles(label="label"))), (_CSV,)),
}
