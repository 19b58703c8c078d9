"""Trackers: log a run to TensorBoard, MLflow or Weights & Biases (optional: `pip install 'fedl2g[tracking]'`).

A tracker is an observer. When a run is resumed, the tracker queries the store for the rounds it holds and adds the
missing ones, so that each round is logged exactly once.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedl2g.errors import RunError, SettingError, choices
from fedl2g.experiment import flat
from fedl2g.federation import Federation, Observer
from fedl2g.files import quoted
from fedl2g.folder import MIB, Folder
from fedl2g.round.record import MB, RoundRecord, guarantee_of, seconds_per_client

if TYPE_CHECKING:
    from mlflow import MlflowClient

_MARK = "fedl2g.run"  # the tag that identifies a run


def trackers(names: str, run: Path) -> list[Observer]:
    """The trackers named in "tensorboard,mlflow,wandb" for the run in this directory."""
    result: list[Observer] = []
    for name in (part.strip() for part in names.split(",") if part.strip()):
        if name not in TRACKERS:
            raise SettingError(f"--track: {name!r} is not known; {choices(name, TRACKERS)}")
        if importlib.util.find_spec(name) is None:
            raise SettingError(f"--track: the package {name} is not installed; run pip install 'fedl2g[tracking]'")
        result.append(TRACKERS[name](run))
    return result


def where_tracked(names: str, runs: Sequence[Path]) -> list[str]:
    """For each tracker named, where it wrote these runs and the command that opens it."""
    return [TRACKERS[name.strip()].where([run.resolve() for run in runs]) for name in names.split(",") if name.strip()]


def scalars(record: RoundRecord) -> dict[str, float]:
    """The metrics of a round, under the same names in every tracker."""
    values: dict[str, float | None] = {
        "loss": record.loss,
        "communication/up_mb": record.up_bytes / MB,
        "communication/down_mb": record.down_bytes / MB,
        "seconds/client": seconds_per_client([record]) or 0.0,
        "seconds/server": record.server_seconds,
        "seconds/evaluation": record.evaluation_seconds,
        "replies/refused": float(len(record.refused)),
        "replies/missing": float(len(record.missing)),
        **{f"clients/{name}": value for name, value in record.metrics.items()},
        **{f"server/{name}": value for name, value in record.server.items()},
        **_privacy(record.privacy),
    }
    if (accuracy := record.accuracy) is not None:
        values |= {"accuracy/pooled": accuracy.pooled, "accuracy/mean": accuracy.mean, "accuracy/std": accuracy.std}
        values |= {f"accuracy/{name}": value for name, value in accuracy.others.items()}
        values |= {"accuracy/validation": accuracy.validation, "accuracy/balanced": accuracy.balanced}
        values["accuracy/macro_f1"] = accuracy.macro_f1
    return {name: float(value) for name, value in values.items() if value is not None}


def _privacy(spent: Mapping[str, float]) -> dict[str, float]:
    """The privacy of a record; a guarantee whose noise was not secret is labelled as simulated."""
    label = "privacy_simulated" if guarantee_of(spent) == "simulated" else "privacy"
    return {f"{label}/{name}": value for name, value in spent.items()}


class Tracker(Observer):
    """The base class of trackers: logs each round exactly once."""

    def __init__(self, run: Path) -> None:
        self.run = run.resolve()
        self._stored: set[int] = set()

    def on_start(self, federation: Federation) -> None:
        self._stored = self.open(federation)
        for record in federation.history:
            self.on_round(federation, record)

    def on_round(self, federation: Federation, record: RoundRecord) -> None:
        if record.round not in self._stored:
            self.write(record.round, scalars(record))
            self._stored.add(record.round)

    def on_end(self, federation: Federation) -> None:
        self.close()

    @staticmethod
    def where(runs: Sequence[Path]) -> str:
        """A line for the user: where these runs were written and how to open them."""
        raise NotImplementedError

    def open(self, federation: Federation) -> set[int]:
        """Open the store; returns the rounds it holds."""
        raise NotImplementedError

    def write(self, round: int, values: dict[str, float]) -> None:
        """Log one round."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the store after the last round."""
        raise NotImplementedError


class TensorBoardTracker(Tracker):
    """Writes to RUN/tensorboard."""

    @staticmethod
    def where(runs: Sequence[Path]) -> str:
        folder = _common_folder(runs)
        return f"tensorboard: {folder}; open it with `tensorboard --logdir {quoted(folder)}`"

    def open(self, federation: Federation) -> set[int]:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from torch.utils.tensorboard import SummaryWriter

        folder = self.run / "tensorboard"
        (Folder(self.run) / folder.name).require_plain(_LARGEST)
        stored: set[int] = set()
        if folder.is_dir():
            try:
                found = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
                if _EVERY_ROUND in found.Tags()["scalars"]:
                    stored = {event.step for event in found.Scalars(_EVERY_ROUND)}
            except Exception as error:  # TensorBoard and protobuf raise many kinds of errors on damaged files
                raise RunError(
                    f"{folder}: cannot be read ({type(error).__name__}); remove it, and all rounds are logged again"
                ) from error
        self._writer: Any = SummaryWriter(str(folder))
        if not stored:
            self._writer.add_text("experiment", "    " + federation.experiment.to_toml().replace("\n", "\n    "))
        return stored

    def write(self, round: int, values: dict[str, float]) -> None:
        # The metric that marks a round as stored goes last: a process killed before it logs the round again.
        for name in sorted(values, key=lambda name: name == _EVERY_ROUND):
            self._writer.add_scalar(name, values[name], round)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class MLflowTracker(Tracker):
    """Writes to $MLFLOW_TRACKING_URI, else to mlflow.db (SQLite) beside the run directory."""

    @staticmethod
    def where(runs: Sequence[Path]) -> str:
        uri = _mlflow_uri(runs[0])
        return f"mlflow: {uri}; open it with `mlflow ui --backend-store-uri {shlex.quote(uri)}`"

    def open(self, federation: Federation) -> set[int]:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # no telemetry from a tool for private data
        os.environ.setdefault("DO_NOT_TRACK", "true")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")  # else it tells how it makes its database
        from mlflow import MlflowClient
        from mlflow.entities import Param

        if _DATABASE in (own := Folder(self.run.parent)).names() and not own.is_file(_DATABASE):
            raise RunError(f"{self.run.parent / _DATABASE}: is not a file; expected MLflow's database; remove it")
        self._client: MlflowClient = MlflowClient(tracking_uri=_mlflow_uri(self.run))
        experiment = self._experiment()
        mark = f"{federation.experiment.fingerprint[:16]} {self.run}"
        found = self._client.search_runs([experiment], f"tags.`{_MARK}` = '{_quoted(mark)}'", max_results=1)
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return {metric.step for metric in self._client.get_metric_history(self._id, _EVERY_ROUND)}
        made = self._client.create_run(experiment, run_name=self.run.name, tags={_MARK: mark})
        self._id = made.info.run_id
        settings = flat(federation.experiment.model_dump(mode="json", exclude_none=True))
        self._client.log_batch(self._id, params=[Param(name, str(value)[:500]) for name, value in settings.items()])
        return set()

    def _experiment(self) -> str:
        found = self._client.get_experiment_by_name("fedl2g")
        if found is not None:
            return str(found.experiment_id)
        artifacts = (self.run.parent / "mlflow-artifacts").as_uri()
        return str(self._client.create_experiment("fedl2g", artifact_location=artifacts))

    def write(self, round: int, values: dict[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        # One batch is one transaction: a round is logged atomically.
        metrics = [Metric(name, value, now, round) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._id, "FINISHED")


class WandbTracker(Tracker):
    """Writes to RUN/wandb, to be uploaded by the user; with WANDB_MODE=online it sends every round as it ends."""

    @staticmethod
    def where(runs: Sequence[Path]) -> str:
        if _wandb_mode() != "offline":
            return "wandb: the project fedl2g of your account; open it with the address that wandb printed"
        folder = _common_folder(runs)
        pattern = f"{quoted(folder)}{'' if len(runs) == 1 else '/*'}/wandb/offline-run-*"
        return f"wandb: {folder}, nothing was sent; upload with `wandb sync {pattern}`"

    def open(self, federation: Federation) -> set[int]:
        import wandb

        mode = _wandb_mode()
        self._folder = Folder(self.run) / "wandb"
        for name in self._folder.names():
            if name.startswith(("offline-run-", "run-")):  # its other links, such as latest-run, W&B makes anew
                self._folder.is_folder(name)
            elif name == "settings":  # which may name another server, for who works in the run directory
                raise RunError(
                    f"{self._folder.path / name}: settings of W&B, which it reads where it is started; "
                    "expected none in a run directory; remove the file"
                )
        # A run that is continued writes a second offline folder with the id of the first: to W&B they are one run.
        mark = f"{federation.experiment.fingerprint} {self.run}"
        self._run: Any = wandb.init(
            project="fedl2g",
            name=self.run.name,
            id=hashlib.sha256(mark.encode()).hexdigest()[:16],
            resume="allow",
            dir=self.run,
            mode=mode,
            config=flat(federation.experiment.model_dump(mode="json", exclude_none=True)),
            # The numbers of the rounds and nothing of the machine, its repositories or its screen.
            settings=wandb.Settings(
                silent=mode == "offline",
                console="off",
                disable_code=True,
                disable_git=True,
                x_disable_meta=True,
                x_disable_stats=True,
                x_disable_machine_info=True,
            ),
        )
        if self._folder.status(_LOGGED) is None:  # an offline folder cannot be asked what it holds
            return set()
        try:
            return set(map(int, self._folder.text(_LOGGED).split()))
        except (OSError, ValueError) as error:
            raise RunError(
                f"{self._folder.path / _LOGGED}: cannot be read; remove the folder, and all rounds are logged again"
            ) from error

    def write(self, round: int, values: dict[str, float]) -> None:
        self._run.log(values, step=round)
        with self._folder.appending(_LOGGED) as file:
            file.write(f"{round}\n".encode())

    def close(self) -> None:
        self._run.finish()


_DATABASE, _LOGGED = "mlflow.db", "rounds.txt"
_LARGEST = 512 * MIB  # bytes of a run's TensorBoard files
_EVERY_ROUND = "communication/up_mb"  # logged in every round, so it marks the stored rounds
TRACKERS: dict[str, type[Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "mlflow": MLflowTracker,
    "wandb": WandbTracker,
}


def _common_folder(runs: Sequence[Path]) -> Path:
    return runs[0] if len(runs) == 1 else Path(os.path.commonpath(runs))


def _mlflow_uri(run: Path) -> str:
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{run.parent / _DATABASE}"


def _wandb_mode() -> Literal["online", "offline"]:
    return (
        "online" if os.environ.get("WANDB_MODE") == "online" else "offline"
    )  # nothing leaves the machine unless the user says so


def _quoted(text: str) -> str:
    return text.replace("'", "\\'")
