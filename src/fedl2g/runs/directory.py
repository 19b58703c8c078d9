"""A run directory: experiment, environment, partition, metrics (append-only), checkpoints, figures, result.

A directory may come from somebody else. The Python code it names (a model, a dataset, a method) is only imported if the
user trusts the directory: building an `Experiment` imports its method, so an untrusted directory does not give one.
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

from fedl2g.errors import RunError, SettingError
from fedl2g.experiment.identity import SITES
from fedl2g.files import appearing, quoted, reason_of, write_text
from fedl2g.privacy.noise_key import check_key, key_fingerprint
from fedl2g.references import load_plugin, loaded_plugins, references_in, require_trust
from fedl2g.round.record import RoundRecord
from fedl2g.runs.deployed import how_to_continue
from fedl2g.runs.result import RunResult

if TYPE_CHECKING:
    from fedl2g.datasets import Partition
    from fedl2g.experiment import Experiment
    from fedl2g.setup import Setup

_FORMAT = 2
_ABOUT_TYPES = {
    **dict.fromkeys(("method", "dataset", "partition", "models", "fingerprint", "dataset_fingerprint", "created"), str),
    **dict.fromkeys(("clients", "rounds", "seed"), int),
}
_A_MOMENT = 0.3  # seconds
_log = logging.getLogger(__name__)


class RunDirectory:
    """One run on disk; reading it needs no torch. `trusted`: the code it names may be imported."""

    def __init__(self, path: Path, *, trusted: bool = False) -> None:
        self.path = path
        self.trusted = trusted
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.figures = path / "figures"

    @classmethod
    def create(cls, path: Path, setup: Setup) -> RunDirectory:
        """Create a run directory atomically. It is trusted: the user named the code in it."""
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
            **({"noise_key": key_fingerprint()} if experiment.privacy.on else {}),
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
            raise RunError(
                f"{path}: the run directory cannot be created ({reason_of(error)}); choose another --out"
            ) from error
        return cls(path, trusted=True)

    @classmethod
    def open(cls, path: Path, *, trust: bool = False) -> RunDirectory:
        """Open an existing run directory; one that names code is refused unless it is trusted."""
        run = cls(path, trusted=trust)
        run._check()
        require_trust(references_in(run.settings()), path, trust=trust)
        return run

    @classmethod
    def open_for(cls, path: Path, experiment: Experiment) -> tuple[RunDirectory, Experiment]:
        """Open the directory of the user's experiment; returns it, and the experiment with the layout it started with.

        A directory of another experiment is refused; one with fewer rounds can be extended. Code that the file names is
        not imported: the user's experiment is used, and the directory is only trusted if it names no other code.
        """
        run = cls(path)
        run._check()
        about, settings = run.about(), run.settings()
        if experiment.layout == "auto" and isinstance(layout := settings.get("layout"), str):
            experiment = experiment.settled(layout)  # as resolved when the run was started
        from fedl2g.experiment.extension import check_extension

        check_extension(path, about, experiment)
        run.trusted = set(references_in(settings)) <= set(experiment.references)
        return run, experiment

    def _check(self) -> None:
        if not self.path.is_dir():
            found = "a file" if self.path.exists() else "no such folder"
            raise RunError(f"{self.path}: not a run directory ({found}); `fedl2g list` shows the runs")
        if not (self.path / "run.json").is_file():
            raise RunError(f"{self.path}: not a run directory (it has no run.json); `fedl2g list` shows the runs")
        self.about()

    def about(self) -> dict[str, Any]:
        """The summary of the run (run.json)."""
        about = self._read_json("run.json")
        if about.get("format") != _FORMAT:
            raise RunError(
                f"{self.path}: written by another version of fedl2g (format {about.get('format')!r}); expected format "
                f"{_FORMAT}; open it with the version that wrote it"
            )
        for name, kind in _ABOUT_TYPES.items():
            if type(about.get(name)) is not kind:
                raise RunError(
                    f"{self.path / 'run.json'}: {name!r} is missing or of the wrong type; restore the file from a copy"
                )
        return about

    @property
    def deployed(self) -> bool:
        """Whether this is the run of a deployment: its data stayed at the sites, and its partition is empty."""
        return bool(self.about()["dataset_fingerprint"] == SITES)

    def settings(self) -> dict[str, Any]:
        """The raw settings of experiment.toml; no code that they name is imported."""
        path = self.path / "experiment.toml"
        try:
            return tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise _unreadable(path, error) from error

    def experiment(self) -> Experiment:
        """The experiment of this run; refused if it names code and the directory is not trusted."""
        # run.json decides: a run killed while it was extended may still have the old number in experiment.toml.
        settings = {**self.settings(), "rounds": self.about()["rounds"]}
        require_trust(references_in(settings), self.path, trust=self.trusted)
        from fedl2g.experiment import Experiment

        try:
            return Experiment(**settings)
        except SettingError:
            plugins = self._missing_plugins()
            if not plugins:
                raise
        # What the settings name may be registered by a plugin of the run, which is code like any other.
        require_trust(plugins, self.path, trust=self.trusted)
        for plugin in plugins:
            load_plugin(plugin)
        return Experiment(**settings)

    def _missing_plugins(self) -> list[str]:
        """The plugins that the run was started with and that are not loaded, from wherever they are now."""
        stored = self.about().get("plugins", [])
        if not isinstance(stored, list) or not all(isinstance(plugin, str) for plugin in stored):
            raise RunError(f"{self.path / 'run.json'}: 'plugins' is not a list of names; restore the file from a copy")
        loaded = {Path(plugin).name for plugin in loaded_plugins()}
        return [plugin for plugin in stored if Path(plugin).name not in loaded]

    def check_noise_key(self) -> None:
        """Raise SettingError unless the noise of a privacy guarantee would be drawn as when the run was started."""
        about = self.about()
        if "noise_key" not in about:
            raise RunError(
                f"{self.path / 'run.json'}: 'noise_key' is missing, which a run with a privacy guarantee has; restore "
                "the file from a copy, or start a new run"
            )
        check_key(about["noise_key"], self.path)

    def environment(self) -> dict[str, Any]:
        """Versions, CPU and threads of the machine that started the run."""
        return self._read_json("environment.json")

    def partition(self) -> Partition:
        """The partition: which client holds which samples."""
        from fedl2g.datasets import Partition

        try:
            text = (self.path / "partition.json").read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise _unreadable(self.path / "partition.json", error) from error
        return Partition.from_json(text)

    def history(self) -> list[RoundRecord]:
        """The records of all rounds; for a round repeated after an interruption, the last one."""
        records: dict[int, RoundRecord] = {}
        try:
            text = self.metrics.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unreadable(self.metrics, error) from error
        skipped = 0
        for line in text.split("\n"):
            try:
                record = RoundRecord.from_dict(json.loads(line))
            except (ValueError, RecursionError):
                # A process was killed while writing this line; the round was repeated and recorded again.
                skipped += bool(line.strip())
                continue
            records[record.round] = record
        if skipped:
            _log.info("%s: %d damaged lines were skipped", self.metrics, skipped)
        return [records[number] for number in sorted(records)]

    def latest(self, read: int = 0) -> tuple[RoundRecord | None, int]:
        """The last record beyond the first `read` bytes of the metrics (None: no new one), and the bytes read by now.

        For followers of a run in another process: cheap, and never fails.
        """
        try:
            with self.metrics.open("rb") as file:
                file.seek(read)
                whole = file.read().rpartition(b"\n")[0]
            record = RoundRecord.from_dict(json.loads(whole.rpartition(b"\n")[2])) if whole else None
        except (OSError, ValueError, RecursionError):  # not started yet, or a line of a process that was killed
            return None, read
        return record, read + len(whole) + bool(whole)

    def append(self, record: RoundRecord) -> None:
        """Append a round to the metrics."""
        line = json.dumps(record.to_dict()) + "\n"
        try:
            with self.metrics.open("ab+") as file:
                if file.tell() > 0:
                    file.seek(-1, os.SEEK_END)
                    if file.read(1) != b"\n":
                        file.write(b"\n")  # end the partial line of a killed process
                file.write(line.encode())
        except OSError as error:
            how = f"continue with `fedl2g resume {quoted(self.path)}`"
            raise RunError(
                f"{self.metrics}: cannot be written ({error.strerror}); the last checkpoint is intact; make room, then "
                f"{how_to_continue(self.path) if self.deployed else how}"
            ) from error

    def result(self) -> RunResult | None:
        """The result, or None while the run is unfinished."""
        if not (self.path / "result.json").is_file():
            return None
        try:
            return RunResult.from_dict({**self._read_json("result.json"), "run": str(self.path)})
        except ValueError as error:
            raise RunError(
                f"{self.path / 'result.json'}: not a result of this version of fedl2g ({error}); restore it from a copy"
            ) from error

    def finish(self, result: RunResult) -> None:
        """Write the result: the run is finished."""
        write_text(self.path / "result.json", json.dumps(result.to_dict(), indent=2))

    def reopen(self) -> None:
        """Remove the result: the run goes on."""
        try:
            for name in ("scores.json", "result.json"):
                (self.path / name).unlink(missing_ok=True)
        except OSError as error:
            raise RunError(
                f"{self.path}: its result cannot be removed ({reason_of(error)}); make it writable"
            ) from error

    def describe(self, experiment: Experiment) -> None:
        """Write the number of rounds of an extended run to run.json, then to experiment.toml."""
        about = {**self.about(), "rounds": experiment.rounds, "fingerprint": experiment.fingerprint}
        write_text(self.path / "run.json", json.dumps(about, indent=2))
        write_text(self.path / "experiment.toml", experiment.to_toml())

    @contextmanager
    def lock(self, wait: float = 0.0) -> Iterator[None]:
        """Lock the directory against other processes; waits up to `wait` seconds for the lock."""
        import filelock

        # A little patience: `running` holds the lock for a moment.
        lock = filelock.FileLock(self.path / "lock", timeout=max(wait, _A_MOMENT))
        try:
            lock.acquire()
        except filelock.Timeout as error:
            raise RunError(
                f"{self.path}: in use by another process; wait for it to end, or choose another --out"
            ) from error
        except OSError as error:
            raise RunError(
                f"{self.path}: cannot be written ({error.strerror}); make it writable, or choose another --out"
            ) from error
        try:
            yield
        finally:
            lock.release()

    @property
    def running(self) -> bool:
        """Whether a process works on the run now: it holds the lock."""
        import filelock

        if not (self.path / "lock").is_file():
            return False
        lock = filelock.FileLock(self.path / "lock", timeout=0)
        try:
            lock.acquire()
        except filelock.Timeout:
            return True
        except OSError:  # not ours to lock: a directory that cannot be written
            return False
        lock.release()
        return False

    def _read_json(self, name: str) -> dict[str, Any]:
        try:
            values = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise _unreadable(self.path / name, error) from error
        if not isinstance(values, dict):
            raise RunError(f"{self.path / name}: not a JSON object; restore it from a copy")
        return values


def find_runs(root: Path) -> list[RunDirectory]:
    """Every run directory below a folder; runs are not searched, since they may hold thousands of files."""
    found = []
    for folder, folders, files in os.walk(root):
        if "run.json" in files:
            found.append(Path(folder))
            folders.clear()
        folders[:] = [name for name in folders if ".partial-" not in name]
    return [RunDirectory(path) for path in sorted(found)]


def _unreadable(path: Path, error: Exception) -> RunError:
    return RunError(f"{path}: cannot be read ({reason_of(error)}); restore it from a copy")
