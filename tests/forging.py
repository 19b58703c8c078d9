"""What somebody who forges a run directory does: write files as they like, and seal them anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedl2g.round.record import RoundRecord
from fedl2g.runs.directory import FORMAT, RunDirectory
from fedl2g.runs.metrics import Metrics
from fedl2g.seals import digest, sealed

TINY: dict[str, Any] = {
    "method": "fedproto",
    "samples": 60,
    "image_size": 16,
    "partition": "iid",
    "models": "small_cnn",
    "clients": 2,
    "rounds": 2,
    "execution": {"checkpoint_every": 1},
}
"""A run of two clients, made in a second, with a checkpoint of each round."""
DESCRIBED = ("experiment.toml", "partition.json", "environment.json")
ABOUT: dict[str, Any] = {
    "format": FORMAT,
    "id": "0" * 32,
    **dict.fromkeys(("method", "dataset", "partition", "models", "fingerprint", "dataset_fingerprint"), "x"),
    "clients": 3,
    "rounds": 5,
    "seed": 0,
    "plugins": [],
    "created": "2026-01-01",
    "files": {},
}


def reseal(run: Path, **changes: Any) -> Path:
    """Make run.json fit the files as they are now, with these changes of its own."""
    path = run / "run.json"
    about = {**(json.loads(path.read_text()) if path.exists() else ABOUT), **changes}
    about.pop("digest", None)
    path.write_text(sealed(about | {"files": files_of(run)}))
    return run


def files_of(run: Path) -> dict[str, list[str]]:
    """The digests of the files that run.json describes, as they are now."""
    return {name: [digest((run / name).read_bytes())] for name in DESCRIBED if (run / name).exists()}


def sealed_again(path: Path, values: dict[str, Any], run: Path | None = None) -> None:
    """Write a sealed JSON file, of a run if one is given, with these values."""
    values = {name: value for name, value in values.items() if name != "digest"}
    path.write_text(sealed(values, "" if run is None else RunDirectory(run).records.run))


def line_of(run: Path, values: dict[str, Any]) -> bytes:
    """A line of metrics with any values."""

    class Record(RoundRecord):
        def to_dict(self) -> dict[str, Any]:
            return values

    return _long(RunDirectory(run).records)._line(Record(0))


def _long(records: Metrics) -> Metrics:
    return Metrics(records.folder, records.run, clients=10**6)
