"""Terminal tables of the scores that `--metrics` asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from fedl2g.round.record import chosen_on

_MOST_CLASSES = 30  # in a table; scores.json has all
_MOST_IN_MATRIX = 12
_COLUMNS = {"accuracy": "accuracy", "balanced_accuracy": "balanced", "macro_f1": "macro-F1", "auroc": "AUROC"}
_OF_CLASS = {"recall": "recall", "precision": "precision", "f1": "F1", "auroc": "AUROC"}


def score_tables(scores: Mapping[str, Any]) -> list[Table]:
    """Scores of all clients and of each architecture; of each class and the confusion matrix, if they fit."""
    title = f"Best models, round {scores['round']} ({chosen_on(scores['selection'])}), in % of the test samples"
    rows = {"all clients": scores["overall"], **scores["architectures"]}
    tables = [_table(title, "network", _COLUMNS, rows)]
    tables[0].caption = "over all test samples of the clients of a row"
    classes = scores["classes"]
    if len(classes) <= _MOST_CLASSES:
        tables.append(_table("", "class", _OF_CLASS, classes))
    matrix = scores["overall"].get("confusion")
    if matrix is not None and len(classes) <= _MOST_IN_MATRIX:
        tables.append(_matrix(list(classes), matrix))
    return tables


def compared_scores_table(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    """A row per method: the scores of all clients, mean over seeds."""
    means: dict[str, dict[str, Any]] = {}
    for label, runs in found.items():
        overall = [scores["overall"] for scores in runs]
        means[label] = {"samples": overall[0]["samples"]}
        for name in _COLUMNS:
            values = [one[name] for one in overall if one.get(name) is not None]
            means[label][name] = sum(values) / len(values) if values else None
    chosen = chosen_on(*(scores["selection"] for runs in found.values() for scores in runs))
    table = _table("Best models, in % of the test samples, mean over seeds", "method", _COLUMNS, means)
    table.caption = f"over all clients' test samples; {chosen}"
    return table


def _table(title: str, first: str, columns: Mapping[str, str], rows: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table(title=title or None)
    table.add_column(first, no_wrap=True)
    shown = [name for name in columns if any(row.get(name) is not None for row in rows.values())]
    for column in ("samples", *(columns[name] for name in shown)):
        table.add_column(column, justify="right")
    for label, row in rows.items():
        values = [f"{100 * row[name]:.2f}" if row.get(name) is not None else "-" for name in shown]
        table.add_row(label, str(row["samples"]), *values)
    return table


def _matrix(names: Sequence[str], matrix: Sequence[Sequence[int]]) -> Table:
    table = Table(title="Confusion of all clients: a row for each true class, a column for each predicted one")
    table.add_column("class", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
    for name, counts in zip(names, matrix, strict=True):
        table.add_row(name, *(str(count) if count else "·" for count in counts))
    return table
