"""Thousands of malformed experiment files, metrics, run directories and checkpoints: refused clearly, or sound."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import tomli_w
import torch
from fuzz_helpers import Fuzz, replaced, spoiled_text, strange

from fedl2g.datasets import Partition
from fedl2g.engines.base import Check, Evaluation, Rejected
from fedl2g.errors import FedL2GError, RunError
from fedl2g.experiment import Experiment, parse_override
from fedl2g.federation import Federation
from fedl2g.learning.client import Task
from fedl2g.methods.base import Reply, Report
from fedl2g.methods.registry import get_method
from fedl2g.payload import Payload
from fedl2g.round.record import Accuracy, RoundRecord
from fedl2g.runs.checkpoint import restore_checkpoint, write_checkpoint
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.overview import overview
from fedl2g.runs.result import RunResult
from forging import line_of, reseal, sealed_again

SETTINGS: dict[str, Any] = {
    **Experiment().model_dump(mode="json", exclude_none=True),
    "samples": 100,
    "image_size": 16,
    "noise": {"std": 0.1, "coefficient": 0.1, "scale": "relative"},
    "aggregation": {"rule": "trimmed_mean", "trim": 0.2},
    "attack": {"share": 0.1, "kind": "noise", "strength": 2.0},
    "availability": {"dropout_before": 0.1, "deadline": 2.0, "speed_spread": 0.1, "late": "use"},
}
_SPELLINGS = [
    *("dirichlet:nan", "dirichlet:inf", "dirichlet:-1", "dirichlet:", "pathological:0", "pathological:1e9", "file:"),
    *("iid:3", "cuda:", "cuda:0,", "cpu,cpu", ",", "small,,", "no.such.module:function", ":", "a:", "mean", "fedproto"),
]


def _toml(draw: random.Random) -> str:
    values = dict(SETTINGS)
    for _ in range(draw.randrange(1, 3)):
        name = draw.choice(sorted(values))
        if draw.random() < 0.3:
            values[name] = draw.choice(_SPELLINGS)
        else:
            values = replaced(draw, values) if draw.random() < 0.7 else {**values, name: replaced(draw, values[name])}
            values = values if isinstance(values, dict) else {"method": values}
    try:
        text = tomli_w.dumps(_without_none(values))
    except (ValueError, TypeError):
        name, value = draw.choice(["rounds", "method", "noise"]), draw.choice(["1979-05-27", "07:32:00", "[1,", "nan"])
        text = f"{name} = {value}"
    return spoiled_text(draw, text) if draw.random() < 0.4 else text


def _without_none(values: Any) -> Any:
    if isinstance(values, dict):
        return {str(k): _without_none(v) for k, v in values.items() if v is not None}
    if isinstance(values, list):
        return [_without_none(v) for v in values if v is not None]
    return values


def test_experiment_files(tmp_path: Path) -> None:
    """What is accepted can be written and read back to the same experiment."""
    draw, fuzz = random.Random(4), Fuzz()
    for _ in range(1200):
        text = _toml(draw)
        fuzz(
            lambda text=text: Experiment.from_toml(text),  # type: ignore[misc]
            lambda e: Experiment.from_toml(e.to_toml()).fingerprint == e.fingerprint,
            text,
        )
    path = tmp_path / "experiment.toml"
    for _ in range(150):
        path.write_bytes(draw.randbytes(draw.randrange(80)))
        fuzz(lambda: Experiment.from_file(path), lambda e: isinstance(e, Experiment))
    for _ in range(350):
        text = spoiled_text(draw, draw.choice(["rounds=5", "method.server_lr=1", "noise.std=0.1", "models=[1,2]"]))
        fuzz(
            lambda text=text: Experiment(**_dotted(text)),  # type: ignore[misc]
            lambda e: Experiment.from_toml(e.to_toml()) == e,
            text,
        )
    fuzz.finish(1700, refused=0.5)


def _dotted(text: str) -> dict[str, Any]:
    from fedl2g.experiment import overlay

    return overlay({}, dict([parse_override(text)]))


RECORD = RoundRecord(
    1,
    [0, 1, 2],
    Accuracy(0.5, 0.4, 0.1, {0: 0.5, 1: 0.3}, {"head": 0.2}),
    1.5,
    {0: 1.0, 1: 2.0},
    up_bytes=10,
    refused={2: "NaN"},
    server={"guide_step": 0.1},
    away={1: "is away"},
    late={0: 1},
)


def _typed(record: RoundRecord) -> bool:
    """Every number of a record is a finite number, every client an int: readers may rely on it."""
    values = asdict(record)
    accuracy = values.pop("accuracy")
    numbers = [values[n] for n in ("round", "up_bytes", "down_bytes", "client_seconds", "server_seconds")]
    numbers += [*values["participants"], *values["client_losses"].values(), *values["server"].values()]
    numbers += [values["loss"]] if values["loss"] is not None else []
    keys = [*values["client_losses"], *values["refused"], *values["away"], *values["late"], *values["missing"]]
    if accuracy is not None:
        numbers += [accuracy["pooled"], accuracy["mean"], *accuracy["clients"].values(), *accuracy["others"].values()]
        keys += [*accuracy["clients"]]
    return all(type(n) in (int, float) and abs(n) < math.inf for n in numbers) and all(type(k) is int for k in keys)


def test_metrics_files(tmp_path: Path) -> None:
    """A damaged line is named, and one that somebody sealed anew never becomes a record with wrong types."""
    draw, fuzz = random.Random(5), Fuzz()
    run = RunDirectory(reseal(tmp_path))
    sound = [line_of(tmp_path, {**RECORD.to_dict(), "round": number}) for number in range(3)]
    for _ in range(1000):
        how = draw.random()
        if how < 0.6:
            line = line_of(tmp_path, replaced(draw, json.loads(sound[1].partition(b', "digest"')[0] + b"}")))
        elif how < 0.9:
            line = spoiled_text(draw, sound[1].decode()).encode("utf-8", "replace")
        else:
            line = draw.randbytes(draw.randrange(1, 100)).replace(b"\n", b" ") + b"\n"
        run.metrics.write_bytes(sound[0] + line + sound[2])
        fuzz(run.history, lambda history: len(history) == 3 and all(map(_typed, history)), line)
    fuzz.finish(1000, refused=0.5)
    run.metrics.unlink()
    assert run.history() == []
    run.metrics.mkdir()
    fuzz(run.history, lambda _: False)


def test_run_directories(tmp_path: Path) -> None:
    """Files with any values, all of them sealed anew, and files that were damaged."""
    draw, fuzz = random.Random(6), Fuzz()
    result = RunResult("m", 0, "finished", 0, 0.5, 0, 0.4, 0.4, 0.1, 1.0, {}, 0.1, 0.1, 1.0, 1.0, "here").to_dict()
    partition = {"train": [[0, 1], [2]], "test": [[3], [4, 5]]}
    (tmp_path / "experiment.toml").write_text(tomli_w.dumps(SETTINGS))
    (tmp_path / "partition.json").write_text(json.dumps(partition))
    reseal(tmp_path)
    (tmp_path / "metrics.jsonl").write_bytes(line_of(tmp_path, {**RECORD.to_dict(), "round": 0}))
    whole = {name: (tmp_path / name).read_bytes() for name in ("run.json", "partition.json")}
    run = RunDirectory(tmp_path)
    for _ in range(1200):
        for name, content in whole.items():
            (tmp_path / name).write_bytes(content)
        sealed_again(tmp_path / "result.json", result, tmp_path)
        spoiled = draw.choice(["run.json", "result.json", "partition.json"])
        path = tmp_path / spoiled
        if draw.random() < 0.4:
            path.write_text(spoiled_text(draw, path.read_text()), encoding="utf-8")
        elif spoiled == "result.json":
            values = replaced(draw, result)
            sealed_again(path, values, tmp_path) if isinstance(values, dict) else path.write_text(json.dumps(values))
        elif spoiled == "partition.json":
            path.write_text(json.dumps(replaced(draw, partition)))
            reseal(tmp_path)
        else:
            values = replaced(draw, json.loads(path.read_text()))
            sealed_again(path, values) if isinstance(values, dict) else path.write_text(json.dumps(values))

        def look() -> tuple[Any, ...]:
            run = RunDirectory.open(tmp_path)
            return overview(run), run.result(), run.partition(), run.history()

        fuzz(look, _sound_look, path.read_text(encoding="utf-8"))
    assert run.metrics.exists()
    fuzz.finish(1200, refused=0.5)


def _sound_look(found: tuple[Any, ...]) -> bool:
    row, result, partition, _ = found
    numbers = [result.best_accuracy, result.up_mb_per_round, result.rounds, row["clients"], row["rounds"]]
    return (
        is_dataclass(result)
        and isinstance(partition, Partition)
        and all(type(n) in (int, float) and abs(n) < math.inf for n in numbers)
        and isinstance(row["method"], str)
    )


class Puppets:
    """An engine without clients."""

    lanes = 1
    retries = False

    def train(self, round: int, clients: Sequence[int], payload: Payload, check: Check) -> Iterator[Reply]:
        for client in clients:
            rows = torch.full((1, 2), float(client))
            yield Reply(client, {"ids": torch.tensor([0]), "rows": rows}, Report(5, 1, 0.5, 1.0))

    def evaluate(self, clients: Sequence[int], payload: Payload) -> list[Evaluation | Rejected]:
        return [Evaluation(client, 10, 5, {}) for client in clients]

    def save(self, directory: Path) -> None: ...
    def restore(self, directory: Path | None) -> None: ...
    def revive(self) -> None: ...
    def close(self) -> None: ...


def _federation() -> Federation:
    experiment = Experiment(
        method="feddistill",
        clients=4,
        rounds=3,
        availability={"speed_spread": 1.0, "deadline": 0.7, "late": "use"},
    )
    task = Task(2, (1, 8, 8), seed=0, rounds=3, auxiliary="small_cnn")
    return Federation(experiment, get_method("feddistill").server(experiment.method, task), Puppets())


def test_checkpoints(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Files changed by a fault are noticed; files made by somebody who seals them anew must still fit."""
    caplog.set_level(logging.CRITICAL)
    draw, fuzz = random.Random(7), Fuzz()
    federation = _federation()
    federation.run()
    path = write_checkpoint(tmp_path, federation)
    state_file, server_file = path / "state.json", path / "server.safetensors"
    sealed, tensors = json.loads(state_file.read_text()), safetensors.torch.load_file(server_file)
    assert any(name.startswith("availability.late.") for name in tensors)
    data = server_file.read_bytes()

    def restore() -> Federation:
        fresh = _federation()
        restore_checkpoint(tmp_path, fresh)
        return fresh

    def same(found: Federation) -> bool:
        return found.history == federation.history and all(
            torch.equal(found.server.state_dict()[n], t) for n, t in federation.server.state_dict().items()
        )

    assert same(restore())
    for _ in range(450):
        server_file.write_bytes(data)
        how = draw.random()
        if how < 0.3:  # a fault: nobody makes the digests again
            text = (
                spoiled_text(draw, state_file.read_text())
                if draw.random() < 0.5
                else json.dumps(replaced(draw, sealed))
            )
            state_file.write_text(text)
            fuzz(restore, same, text)
        elif how < 0.5:
            at = draw.randrange(len(data))
            server_file.write_bytes(data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :])
            fuzz(restore, same, at)
        elif how < 0.8:  # sealed anew
            state = {**sealed["state"], "values": replaced(draw, sealed["state"]["values"])}
            state = replaced(draw, sealed["state"]) if draw.random() < 0.2 else state
            _seal(state_file, state)
            fuzz(restore, _usable, state)
        else:
            changed = {**tensors}
            name = draw.choice(sorted(changed))
            changed[
                draw.choice([name, "extra", "availability.late.7.rows", "availability.late.x.rows", "availability.x"])
            ] = draw.choice(
                [torch.zeros(2, 3), torch.full_like(tensors[name].float(), math.nan), torch.zeros((), dtype=torch.int8)]
            )
            if draw.random() < 0.3:
                del changed[name]
            server_file.write_bytes(safetensors.torch.save(changed))
            files = {"server.safetensors": hashlib.sha256(server_file.read_bytes()).hexdigest()}
            _seal(state_file, {**sealed["state"], "files": files})
            fuzz(restore, _usable, name)
        state_file.write_text(json.dumps(sealed))
    fuzz.finish(450, refused=0.7)


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        ("report", "loss", "x"),
        ("report", "seconds", None),
        ("report", "laps", {"data": "long"}),
        ("reply", "client", 99),
        ("reply", "client", 1.5),
        ("reply", "arrives", 1),
        ("reply", "weight", 2.0),
    ],
)
def test_forged_late_replies_are_noticed_when_they_are_read(
    place: str, name: str, value: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation = _federation()
    federation.run()
    path = write_checkpoint(tmp_path, federation)
    state = json.loads((path / "state.json").read_text())["state"]
    late = state["values"]["policies"]["availability"]["late"][0]
    (late["report"] if place == "report" else late)[name] = value
    _seal(path / "state.json", state)
    with pytest.raises(RunError, match="every checkpoint is damaged"):
        restore_checkpoint(tmp_path, _federation())


def _seal(path: Path, state: Any) -> None:
    path.write_text(json.dumps({"state": state, "digest": hashlib.sha256(json.dumps(state).encode()).hexdigest()}))


def _usable(found: Federation) -> bool:
    """Other numbers than ours, but of the right kinds: the run can go on from them."""
    with suppress(FedL2GError):  # it does go on, or says what is wrong
        found._run_round(found.round + 1, [0, 1, 2, 3])
    finite = all(bool(torch.isfinite(t).all()) for t in found.server.state_dict().values())
    return finite and found.server.state_dict()["vectors"].shape == (2, 2) and all(map(_typed, found.history))


def test_json_that_is_not_a_record_is_a_value_error() -> None:
    draw = random.Random(8)
    for _ in range(500):
        values = strange(draw)
        if not isinstance(values, dict) or "round" not in values:
            with pytest.raises(ValueError, match=r"validation error|out of range"):
                RoundRecord.from_dict(values)
