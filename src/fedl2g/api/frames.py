"""The record of a run as pandas DataFrames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from fedl2g import session
from fedl2g.models.catalog import resolve_models
from fedl2g.round.record import MB, RoundRecord, seconds_per_client, selected_record

if TYPE_CHECKING:
    from fedl2g.runs.directory import RunDirectory
    from fedl2g.runs.verdicts import Difference


def history_frame(history: Sequence[RoundRecord]) -> pd.DataFrame:
    """One row a round, round 0 being the evaluation before the first; NaN where a round was not evaluated."""
    frame = pd.DataFrame([_round_row(record) for record in history]).set_index("round")
    return frame.astype({name: float for name in frame if frame[name].dtype == object})  # None where nothing is known


def clients_frame(run: RunDirectory) -> pd.DataFrame:
    """One row a client: its network, its samples, and its accuracy in the best, the first and the last evaluation."""
    about, partition, history = run.about(), run.partition(), run.history()
    names = session.readable(resolve_models(about["models"]))
    clients = range(about["clients"])
    columns: dict[str, Any] = {"architecture": [names[client % len(names)] for client in clients]}
    if not run.deployed:  # where the samples of a deployment are, is known to its sites alone
        columns["train_samples"] = [len(indices) for indices in partition.train]
        columns["test_samples"] = [len(indices) for indices in partition.test]
    evaluated = [record.accuracy for record in history if record.accuracy is not None]
    best = selected_record(history)
    if best is not None and best.accuracy is not None:
        found: Mapping[str, Mapping[int, float]] = {
            "accuracy": best.accuracy.clients,
            "balanced_accuracy": best.accuracy.balanced_clients,
            "macro_f1": best.accuracy.macro_f1_clients,
            "first_accuracy": evaluated[0].clients,
            "last_accuracy": evaluated[-1].clients,
        }
        columns |= {name: [values.get(client) for client in clients] for name, values in found.items()}
    return pd.DataFrame(columns, index=pd.RangeIndex(len(clients), name="client"))


def verdicts_frame(differences: Sequence[Difference]) -> pd.DataFrame:
    """One row a method: its difference against the reference with the interval, and the clients that gain and lose."""
    wanted = ("method", "reference", "difference", "low", "high", "p", "p_holm", "gain", "unchanged", "lose", "verdict")
    rows = [one.to_dict() for one in differences]
    frame = pd.DataFrame([{name: row[name] for name in (*wanted, "sentence")} for row in rows])
    return frame.set_index("method") if rows else frame


def _round_row(record: RoundRecord) -> dict[str, Any]:
    accuracy = record.accuracy
    row: dict[str, Any] = {"round": record.round}
    if accuracy is not None:
        row |= {
            "accuracy": accuracy.pooled,
            "validation_accuracy": accuracy.validation,
            "mean_client_accuracy": accuracy.mean,
            "std_client_accuracy": accuracy.std,
            "balanced_accuracy": accuracy.balanced,
            "macro_f1": accuracy.macro_f1,
            **{f"{name}_accuracy": value for name, value in accuracy.others.items()},
        }
    return {
        **row,
        "loss": record.loss,
        **record.metrics,
        **record.server,
        **record.privacy,
        "participants": len(record.participants),
        "refused": len(record.refused),
        "up_mb": record.up_bytes / MB,
        "down_mb": record.down_bytes / MB,
        "client_seconds": seconds_per_client([record]),
        "server_seconds": record.server_seconds,
    }
