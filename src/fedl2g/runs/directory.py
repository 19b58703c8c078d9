"""A run directory: experiment, environment, partition, metrics (append-only), checkpoints, figures, result.

A directory may come from somebody else. What it names as code (a model, a dataset, a method) is imported by nobody who
has not said to trust it: an `Experiment`, whose making imports a method, cannot be had from an untrusted directory.
"""

from __future__ import annotations

import json
import logging
import os
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedl2g.errors import RunError
from fedl2g.experiment.identity import SITES
from fedl2g.files import appearing, reason_of, write_text
from fedl2g.references import loaded_plugins, references_in, require_trust
from fedl2g.round.record import RoundRecord
from fedl2g.runs.result import RunResult

if TYPE_CHECKING:
    from fedl2g.data import Partition
    from fedl2g.experiment import Experiment
    from fedl2g.setup import Setup

_FORMAT = 2
_ABOUT = {
    **dict.fromkeys(("method", "dataset", "partition", "models", "fingerprint", "dataset_fingerprint", "created"), str),
    **dict.fromkeys(("clients", "rounds", "seed"), int),
}
_log = logging.getLogger(__name__)


class RunDirectory:
    """One run on disk; reading it needs no torch. `trusted`: code that it names may be imported."""

    def __init__(self, path: Path, *, trusted: bool = False) -> None:
        self.path = path
        self.trusted = trusted
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.figures = path / "figures"

    @classmethod
    def create(cls, path: Path, setup: Setup) -> RunDirectory:
        """Make a new run directory; it appears whole or not at all. The code in it was named by the user."""
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
        files = {
            "metrics.jsonl": "",
            "experiment.toml": experiment.to_toml(),
            "partition.json": setup.partition.to_json(),
            "environment.json": json.dumps(describe_environment(), indent=2),
            "run.json": json.dumps(about, indent=2),
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with appearing(path) as partial:
                for folder in ("checkpoints", "figures"):
                    (partial / folder).mkdir(parents=True)
                for name, text in files.items():
                    (partial / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise RunError(f"cannot create the run directory {path}: {reason_of(error)}") from error
        return cls(path, trusted=True)

    @classmethod
    def open(cls, path: Path, *, trust: bool = False) -> RunDirectory:
        """An existing run directory; one that names code is refused unless the user says to trust it."""
        run = cls(path, trusted=trust)
        run._check()
        require_trust(references_in(run.settings()), path, trust=trust)
        return run

    @classmethod
    def open_own(cls, path: Path, experiment: Experiment) -> tuple[RunDirectory, Experiment]:
        """The directory in which the user's experiment was started, and the experiment with the layouts it began with.

        A directory of another experiment is refused. Nothing that it names is imported, since the user's experiment
        counts and not the one in the file; it is trusted with no more code than the user has named.
        """
        run = cls(path)
        run._check()
        about, settings = run.about(), run.settings()
        if experiment.layout == "auto" and isinstance(layout := settings.get("layout"), str):
            experiment = experiment.settled(layout)  # as it was settled when the run was started
        if about["fingerprint"] != experiment.fingerprint:
            raise RunError(
                f"{path} holds another experiment ({about['method']}, seed {about['seed']}); choose another --out"
            )
        run.trusted = set(references_in(settings)) <= set(experiment.references)
        return run, experiment

    def _check(self) -> None:
        if not self.path.is_dir():
            raise RunError(f"{self.path} is not a run directory: there is no such folder; `fedl2g list` shows the runs")
        if not (self.path / "run.json").is_file():
            raise RunError(f"{self.path} is not a run directory: it has no run.json; `fedl2g list` shows the runs")
        self.about()

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

    def settings(self) -> dict[str, Any]:
        """The settings in experiment.toml as they stand there; nothing that they name is imported."""
        path = self.path / "experiment.toml"
        try:
            return tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(f"{path} cannot be read: {reason_of(error)}; restore it from a copy") from error

    def experiment(self) -> Experiment:
        """The experiment of this run; refused where it names code and the directory is not trusted."""
        settings = self.settings()
        require_trust(references_in(settings), self.path, trust=self.trusted)
        from fedl2g.experiment import Experiment

        return Experiment(**settings)

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
        write_text(self.path / "result.json", json.dumps(result.to_dict(), indent=2))

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
