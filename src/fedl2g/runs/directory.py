"""A run directory: experiment, environment, partition, metrics (append-only), checkpoints, figures, result."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedl2g.errors import RunError
from fedl2g.experiment.identity import SITES
from fedl2g.round.record import RoundRecord
from fedl2g.runs.result import RunResult

if TYPE_CHECKING:
    from fedl2g.data import Partition
    from fedl2g.experiment import Experiment
    from fedl2g.setup import Setup

_FORMAT = 1
_ABOUT = {
    **dict.fromkeys(("method", "dataset", "partition", "models", "fingerprint", "dataset_fingerprint", "created"), str),
    **dict.fromkeys(("clients", "rounds", "seed"), int),
}
_log = logging.getLogger(__name__)


class RunDirectory:
    """One run on disk; reading it needs no torch."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.figures = path / "figures"

    @classmethod
    def create(cls, path: Path, setup: Setup) -> RunDirectory:
        """Make a new run directory; it appears whole or not at all."""
        from fedl2g.references import loaded_plugins
        from fedl2g.runs.environment import describe_environment

        experiment = setup.experiment
        about = {
            "format": _FORMAT,
            "method": experiment.method.name,
            "dataset": experiment.dataset,
            "partition": experiment.partition,
            "models": experiment.models,
            "clients": experiment.clients,
            "rounds": experiment.rounds,
            "seed": experiment.seed,
            "fingerprint": experiment.fingerprint,
            "dataset_fingerprint": setup.dataset.fingerprint,
            "plugins": loaded_plugins(),
            "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }
        partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
        try:
            partial.mkdir(parents=True)
            (partial / "checkpoints").mkdir()
            (partial / "figures").mkdir()
            (partial / "metrics.jsonl").touch()
            (partial / "experiment.toml").write_text(experiment.to_toml(), encoding="utf-8")
            (partial / "partition.json").write_text(setup.partition.to_json(), encoding="utf-8")
            (partial / "environment.json").write_text(json.dumps(describe_environment(), indent=2), encoding="utf-8")
            (partial / "run.json").write_text(json.dumps(about, indent=2), encoding="utf-8")
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()  # an empty folder the user made for the run
            partial.rename(path)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise RunError(f"cannot create the run directory {path}: {error.strerror}") from error
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing run directory."""
        run = cls(path)
        if not path.is_dir():
            raise RunError(f"{path} is not a run directory: there is no such folder; `fedl2g list` shows the runs")
        if not (path / "run.json").is_file():
            raise RunError(f"{path} is not a run directory: it has no run.json; `fedl2g list` shows the runs")
        run.about()
        return run

    def about(self) -> dict[str, Any]:
        """The run in short (run.json)."""
        about = self._read_json("run.json")
        if about.get("format") != _FORMAT:
            raise RunError(f"{self.path} was written by another version of fedl2g (format {about.get('format')!r})")
        for name, kind in _ABOUT.items():
            if type(about.get(name)) is not kind:
                raise RunError(f"{self.path / 'run.json'} cannot be used: {name!r} is missing or not what it should be")
        return about

    @property
    def deployed(self) -> bool:
        """Whether the clients lived at their own sites: of who holds which samples, nothing is known here."""
        return bool(self.about()["dataset_fingerprint"] == SITES)

    def experiment(self) -> Experiment:
        """The experiment of this run."""
        from fedl2g.experiment import Experiment

        return Experiment.from_file(self.path / "experiment.toml")

    def environment(self) -> dict[str, Any]:
        """Versions, CPU and threads of the machine that started the run."""
        return self._read_json("environment.json")

    def partition(self) -> Partition:
        """Who holds which samples."""
        from fedl2g.data import Partition

        try:
            text = (self.path / "partition.json").read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise RunError(f"{self.path / 'partition.json'} cannot be read: {error}") from error
        return Partition.from_json(text)

    def history(self) -> list[RoundRecord]:
        """The records of all rounds; of a round that was run again after an interruption, the last record."""
        records: dict[int, RoundRecord] = {}
        try:
            text = self.metrics.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RunError(f"cannot read {self.metrics}: {error.strerror}") from error
        skipped = 0
        for line in text.split("\n"):
            try:
                record = RoundRecord.from_dict(json.loads(line))
            except (ValueError, RecursionError):
                # The process was killed while it wrote this line; the round was run and recorded again.
                skipped += bool(line.strip())
                continue
            records[record.round] = record
        if skipped:
            _log.info("%s: %d damaged lines were skipped", self.metrics, skipped)
        return [records[number] for number in sorted(records)]

    def append(self, record: RoundRecord) -> None:
        """Add a round to the metrics."""
        line = json.dumps(record.to_dict()) + "\n"
        try:
            with self.metrics.open("ab+") as file:
                if file.tell() > 0:
                    file.seek(-1, os.SEEK_END)
                    if file.read(1) != b"\n":
                        file.write(b"\n")  # a killed process left half a line: keep it apart from the next
                file.write(line.encode())
        except OSError as error:
            raise RunError(
                f"cannot write {self.metrics}: {error.strerror}; the last checkpoint is intact: make room, then "
                f"continue with `fedl2g resume {self.path}`"
            ) from error

    def result(self) -> RunResult | None:
        """The result, once the run is over."""
        if not (self.path / "result.json").is_file():
            return None
        try:
            return RunResult.from_dict({**self._read_json("result.json"), "run": str(self.path)})
        except ValueError as error:
            raise RunError(f"{self.path / 'result.json'} is not a result of this version of fedl2g") from error

    def finish(self, result: RunResult) -> None:
        """Record that the run is over."""
        write_atomically(self.path / "result.json", json.dumps(result.to_dict(), indent=2))

    @contextmanager
    def lock(self, wait: float = 0.0) -> Iterator[None]:
        """Hold the directory: two processes must not write the same run. `wait` seconds for another to let go."""
        import filelock

        lock = filelock.FileLock(self.path / "lock", timeout=wait)
        try:
            lock.acquire()
        except filelock.Timeout as error:
            raise RunError(
                f"{self.path} is in use by another process; wait for it to end or choose another --out"
            ) from error
        except OSError as error:
            raise RunError(f"cannot write to {self.path}: {error.strerror}") from error
        try:
            yield
        finally:
            lock.release()

    def _read_json(self, name: str) -> dict[str, Any]:
        try:
            values = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(f"{self.path / name} cannot be read: {error}") from error
        if not isinstance(values, dict):
            raise RunError(f"{self.path / name} cannot be read: it is not a JSON object")
        return values


def find_runs(root: Path) -> list[RunDirectory]:
    """Every run directory below a folder; none is looked for inside a run, which may hold thousands of files."""
    found = []
    for folder, folders, files in os.walk(root):
        if "run.json" in files:
            found.append(Path(folder))
            folders.clear()
        folders[:] = [name for name in folders if ".partial-" not in name]
    return [RunDirectory(path) for path in sorted(found)]


def write_atomically(path: Path, text: str) -> None:
    """Replace a file in one step: a reader, or a crash, sees the old content or the new."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise RunError(f"cannot write {path}: {error.strerror}") from error
