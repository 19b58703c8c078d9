"""One-line overviews of runs, read without importing torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedl2g.round.record import chosen_on, selected_record, selection_of
from fedl2g.runs.directory import RunDirectory


def overview(run: RunDirectory) -> dict[str, Any]:
    """The values that `fedl2g list` shows for a run, finished or not."""
    about = run.about()
    row = {name: about[name] for name in ("method", "dataset", "partition", "models", "clients", "seed", "rounds")}
    row |= {"run": str(run.path), "created": about["created"]}
    result = run.result()
    if result is not None:
        return row | {
            "rounds_done": result.rounds,
            "best_accuracy": result.best_accuracy,
            "best_round": result.best_round,
            "selection": result.selection,
            "status": result.status,
        }
    history = run.history()
    best = selected_record(history)
    return row | {
        "rounds_done": history[-1].round if history else 0,
        "best_accuracy": best.accuracy.pooled if best and best.accuracy else None,
        "best_round": best.round if best else None,
        "selection": selection_of(history),
        "status": "unfinished",
    }


def as_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Overviews as a plain-text table: for hundreds of rows, rich takes longer than reading the runs."""
    lines = [("method", "dataset", "partition", "models", "clients", "seed", "rounds", "best", "status", "run")]
    for row in rows:
        best = "" if row["best_accuracy"] is None else f"{row['best_accuracy']:.2%}"
        done = f"{row['rounds_done']}/{row['rounds']}"
        about = [str(row[name]) for name in ("method", "dataset", "partition", "models", "clients", "seed")]
        lines.append((*about, done, best, row["status"], row["run"]))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    chosen = {row["selection"] for row in rows}
    if len(chosen) == 1:
        note = chosen_on(*chosen)
    else:
        note = "best round chosen on test data; on validation data where a run has any"
    return "\n".join(["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines] + [f"best: {note}"])
