"""The record of a run as pandas DataFrames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedl2g.round.record import MB, RoundRecord, selected_record

if TYPE_CHECKING:
    from pandas import DataFrame


def history_frame(history: Sequence[RoundRecord]) -> DataFrame:
    """One row a round, round 0 being the evaluation before the first; NaN where a round was not evaluated."""
    import pandas as pd

    return pd.DataFrame([_round_row(record) for record in history]).set_index("round")


def clients_frame(history: Sequence[RoundRecord], architectures: Sequence[str], sizes: Mapping[str, Any]) -> DataFrame:
    """One row a client: its network, its samples, and its accuracy in the selected, the last and the first evaluation.

    `sizes` maps the names of further columns to one value per client.
    """
    import pandas as pd

    evaluated = [record for record in history if record.accuracy is not None]
    selected = selected_record(history)
    columns: dict[str, Any] = {"architecture": list(architectures), **sizes}
    if selected is not None and selected.accuracy is not None:
        at_selected, first, last = selected.accuracy, evaluated[0].accuracy, evaluated[-1].accuracy
        assert first is not None
        assert last is not None
        columns["accuracy"] = pd.Series(at_selected.clients)
        columns["balanced_accuracy"] = pd.Series(at_selected.balanced_clients, dtype=float)
        columns["macro_f1"] = pd.Series(at_selected.macro_f1_clients, dtype=float)
        columns["first_accuracy"] = pd.Series(first.clients)
        columns["last_accuracy"] = pd.Series(last.clients)
    return pd.DataFrame(columns, index=pd.RangeIndex(len(architectures), name="client"))


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
        "client_seconds": record.client_seconds / max(len(record.participants), 1),
        "server_seconds": record.server_seconds,
    }
