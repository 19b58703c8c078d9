"""A run directory: experiment, environment, partition, metrics (append-only), checkpoints, figures, result.

A directory may come from somebody else. The Python code it names (a model, a dataset, a method) is only imported if the
user trusts the directory: building an `Experiment` imports its method, so an untrusted directory does not give one.

`run.json` is sealed, and holds the digests of the files that are written with it. The metrics, the result and the
checkpoints have digests of their own; those of the metrics and the result cover the run's id as well.
"""

from __future__ import annotations

import logging
import os
import tomllib
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedl2g.errors import RunError, SettingError
from fedl2g.experiment.identity import SITES
from fedl2g.files import quoted, reason_of
from fedl2g.folder import MIB, SMALL, Folder
from fedl2g.privacy.noise_key import check_key
from fedl2g.references import load_plugin, loaded_plugins, references_in, require_trust
from fedl2g.round.record import RoundRecord
from fedl2g.runs.deployed import how_to_continue
from fedl2g.runs.layout import ABOUT, CHECKPOINTS, ENVIRONMENT, EXPERIMENT, FIGURES, METRICS, PARTITION, RESULT, SCORES
from fedl2g.runs.locking import is_locked, locked
from fedl2g.runs.metrics import Metrics
from fedl2g.runs.result import RunResult
from fedl2g.seals import check_seal, damaged, digest, read_json, read_sealed, require_plain_text, write_sealed

if TYPE_CHECKING:
    from fedl2g.datasets import Partition
    from fedl2g.experiment import Experiment
    from fedl2g.setup import Setup

FORMAT = 3
_ABOUT_TYPES = {
    **dict.fromkeys(("method", "dataset", "partition", "models", "fingerprint", "dataset_fingerprint", "created"), str),
    **dict.fromkeys(("clients", "rounds", "seed"), int),
    "id": str,
    "files": dict,
}
_MOST = {"clients": 10**6, "rounds": 2**31}
_PARTITION_LIMIT = 128 * MIB
_log = logging.getLogger(__name__)


class RunDirectory:
    """One run on disk; reading it needs no torch. `trusted`: the code it names may be imported."""

    def __init__(self, path: Path, *, trusted: bool = False) -> None:
        self.path = path
        self.folder = Folder(path)
        self.trusted = trusted
        self.metrics = path / METRICS
        self.checkpoints = path / CHECKPOINTS
        self.figures = path / FIGURES

    @classmethod
    def create(cls, path: Path, setup: Setup) -> RunDirectory:
        """Create a run directory atomically. It is trusted: the user named the code in it."""
        from fedl2g.runs.creation import write_new

        write_new(path, setup, FORMAT)
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

        A directory of another experiment is refused, and one that names other code; one with fewer rounds can be
        extended.
        """
        run = cls(path)
        run._check()
        about, settings = run.about(), run.settings()
        if experiment.layout == "auto" and isinstance(layout := settings.get("layout"), str):
            experiment = experiment.settled(layout)  # as resolved when the run was started
        from fedl2g.experiment.extension import check_extension

        check_extension(path, about, experiment)
        if others := sorted(set(references_in(settings)) - set(experiment.references)):
            raise RunError(f"{path}: names code that this experiment does not name ({others[0]}); choose another --out")
        from fedl2g.experiment import Experiment

        # experiment.toml must be the user's experiment: whatever is read from the directory later needs no other code.
        if Experiment(**{**settings, "rounds": about["rounds"]}).fingerprint != about["fingerprint"]:
            raise RunError(
                f"{path}: experiment.toml and run.json belong to different runs; restore them from a copy, or choose "
                "another --out"
            )
        run.trusted = True
        return run, experiment

    def _check(self) -> None:
        if not self.path.is_dir():
            found = "a file" if self.path.exists() else "no such folder"
            raise RunError(f"{self.path}: not a run directory ({found}); `fedl2g list` shows the runs")
        if self.folder.status(ABOUT) is None:
            raise RunError(f"{self.path}: not a run directory (it has no run.json); `fedl2g list` shows the runs")
        self.about()

    def about(self) -> dict[str, Any]:
        """The summary of the run (run.json)."""
        about, path = read_json(self.folder, ABOUT), self.path / ABOUT
        if about.get("format") != FORMAT:
            raise RunError(
                f"{self.path}: written by another version of fedl2g (format {about.get('format')!r}); expected format "
                f"{FORMAT}; open it with the version that wrote it"
            )
        check_seal(path, about)
        wrong = [name for name, kind in _ABOUT_TYPES.items() if type(about.get(name)) is not kind]
        wrong += [name for name, most in _MOST.items() if not wrong and not 0 <= about[name] <= most]
        if wrong:
            raise RunError(f"{path}: {wrong[0]!r} is missing or not valid; restore the file from a copy")
        return about

    @property
    def deployed(self) -> bool:
        """Whether this is the run of a deployment: its data stayed at the sites, and its partition is empty."""
        return bool(self.about()["dataset_fingerprint"] == SITES)

    def settings(self) -> dict[str, Any]:
        """The raw settings of experiment.toml; no code that they name is imported."""
        path = self.path / EXPERIMENT
        try:
            settings = tomllib.loads(self._verified(EXPERIMENT).decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise _unreadable(path, error) from error
        require_plain_text(path, settings)
        return settings

    def settings_text(self) -> str:
        """The text of experiment.toml."""
        return self._verified(EXPERIMENT).decode("utf-8", errors="replace")

    def experiment(self) -> Experiment:
        """The experiment of this run; refused if it names code and the directory is not trusted."""
        about = self.about()
        # run.json decides: a run killed while it was extended may still have the old number in experiment.toml.
        settings = {**self.settings(), "rounds": about["rounds"]}
        require_trust(references_in(settings), self.path, trust=self.trusted)
        found = self._experiment(settings)
        if found.clients != about["clients"]:
            raise RunError(
                f"{self.path}: experiment.toml and run.json belong to different runs; restore them from a copy"
            )
        return found

    def _experiment(self, settings: dict[str, Any]) -> Experiment:
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
            raise RunError(f"{self.path / ABOUT}: 'plugins' is not a list of names; restore the file from a copy")
        loaded = {Path(plugin).name for plugin in loaded_plugins()}
        return [plugin for plugin in stored if Path(plugin).name not in loaded]

    def check_noise_key(self) -> None:
        """Raise SettingError unless the noise of a privacy guarantee would be drawn as when the run was started."""
        about = self.about()
        if "noise_key" not in about:
            raise RunError(
                f"{self.path / ABOUT}: 'noise_key' is missing, which a run with a privacy guarantee has; restore "
                "the file from a copy, or start a new run"
            )
        check_key(about["noise_key"], self.path)

    def environment(self) -> dict[str, Any]:
        """Versions, CPU and threads of the machine that started the run."""
        self._verified(ENVIRONMENT)
        found = read_json(self.folder, ENVIRONMENT)
        require_plain_text(self.path / ENVIRONMENT, found)
        if not isinstance(found.get("packages", {}), dict):
            raise RunError(f"{self.path / ENVIRONMENT}: 'packages' is not a table of versions; restore it from a copy")
        return found

    def partition(self, samples: int | None = None) -> Partition:
        """The partition: which client holds which samples, of so many if the dataset is at hand."""
        from fedl2g.datasets import Partition

        try:
            text = self._verified(PARTITION, _PARTITION_LIMIT).decode("utf-8")
        except ValueError as error:
            raise _unreadable(self.path / PARTITION, error) from error
        found, clients = Partition.from_json(text), self.about()["clients"]
        if found.clients != clients:
            what = f"it is for {found.clients} clients, and the run has {clients}"
        elif (index := found.outside(samples)) is not None:
            what = f"no sample has its index {index}"
        else:
            return found
        raise RunError(f"{self.path / PARTITION}: does not fit the run, {what}; restore it from a copy")

    def figure(self, name: str) -> Path:
        """The path of a figure in the run's own folder for them."""
        try:
            self.folder.make(FIGURES)
        except OSError as error:
            raise RunError(f"{self.figures}: cannot be written ({reason_of(error)}); make it writable") from error
        return self.figures / name

    @cached_property
    def records(self) -> Metrics:
        """The lines of metrics.jsonl."""
        about = self.about()
        go_on = f"continue with `fedl2g resume {quoted(self.path)}`"
        return Metrics(
            self.folder,
            about["id"],
            about["clients"],
            go_on=how_to_continue(self.path) if self.deployed else go_on,
            every_round=not self.deployed,  # a site's own record has the rounds it took part in
        )

    def history(self) -> list[RoundRecord]:
        """The records of all rounds; for a round repeated after an interruption, the last one."""
        if self.folder.status(ABOUT) is None:  # not started yet
            return []
        result = self.result()  # first: a run may be finished between the two
        found = self.records.read()
        last = max(found.records, default=0)
        if result is not None and last < result.rounds and not found.damage:
            found.damage = f"it ends with round {last}, and the run with round {result.rounds}"
        if found.damage:
            again = "" if result is None else "remove result.json and "
            raise RunError(
                f"{self.metrics}: damaged, {found.damage}; restore it from a copy, or {again}continue with `fedl2g "
                f"resume {quoted(self.path)}`, which writes it anew from the checkpoint"
            )
        return found.history

    def latest(self, read: int = 0) -> tuple[RoundRecord | None, int]:
        """As `Metrics.latest`; nothing before the run has started."""
        try:
            return self.records.latest(read)
        except RunError:  # not started yet
            return None, read

    def append(self, record: RoundRecord) -> None:
        """Append a round to the metrics."""
        self.records.append(record)

    def result(self) -> RunResult | None:
        """The result, or None while the run is unfinished."""
        if self.folder.status(RESULT) is None:
            return None
        values = read_sealed(self.folder, RESULT, self.records.run)
        try:
            return RunResult.from_dict({**values, "run": str(self.path)})
        except ValueError as error:
            raise RunError(
                f"{self.path / 'result.json'}: not a result of this version of fedl2g ({error}); restore it from a copy"
            ) from error

    def finish(self, result: RunResult) -> None:
        """Write the result: the run is finished."""
        write_sealed(self.folder, RESULT, result.to_dict(), self.records.run)

    def reopen(self) -> None:
        """Remove the result, so that the run can continue."""
        try:
            for name in (SCORES, RESULT):
                self.folder.remove(name)
        except OSError as error:
            raise RunError(
                f"{self.path}: its result cannot be removed ({reason_of(error)}); make it writable"
            ) from error

    def write_rounds(self, experiment: Experiment) -> None:
        """Write the number of rounds of an extended run to run.json, then to experiment.toml."""
        text, about = experiment.to_toml(), self.about()
        # If the process is killed between the two writes, the old file remains; its number of rounds is not used.
        known = [digest(text.encode()), digest(self._verified(EXPERIMENT))]
        files = {**about["files"], EXPERIMENT: list(dict.fromkeys(known))}
        about |= {"rounds": experiment.rounds, "fingerprint": experiment.fingerprint, "files": files}
        write_sealed(self.folder, ABOUT, about)
        self.folder.write_text(EXPERIMENT, text)

    def lock(self, wait: float = 0.0) -> AbstractContextManager[None]:
        """Lock the directory against other processes; waits up to `wait` seconds for the lock."""
        return locked(self.folder, wait)

    @property
    def running(self) -> bool:
        """Whether a process works on the run now, and so holds the lock."""
        return is_locked(self.folder)

    def _verified(self, name: str, limit: int = SMALL) -> bytes:
        """The content of a file whose digest is in run.json."""
        try:
            content = self.folder.read(name, limit)
        except OSError as error:
            raise _unreadable(self.path / name, error) from error
        known = self.about()["files"].get(name)
        if not isinstance(known, list) or digest(content) not in known:
            raise damaged(self.path / name)
        return content


def find_runs(root: Path) -> list[RunDirectory]:
    """Every run directory below a folder; runs are not searched, since they may hold thousands of files."""
    found = []
    for folder, folders, files in os.walk(root):
        if ABOUT in files:
            found.append(Path(folder))
            folders.clear()
        folders[:] = [name for name in folders if ".partial-" not in name]
    return [RunDirectory(path) for path in sorted(found)]


def _unreadable(path: Path, error: Exception) -> RunError:
    return RunError(f"{path}: cannot be read ({reason_of(error)}); restore it from a copy")
