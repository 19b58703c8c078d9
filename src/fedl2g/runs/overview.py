"""A run in one line, read from its files without loading torch."""

from __future__ import annotations

from typing import Any

from fedl2g.records import best_record
from fedl2g.runs.directory import RunDirectory


def overview(run: RunDirectory) -> dict[str, Any]:
    """What `fedl2g list` shows of a run, finished or not."""
    about = run.about()
    row = {name: about[name] for name in ("method", "dataset", "partition", "models", "clients", "seed", "rounds")}
    row |= {"run": str(run.path), "created": about["created"]}
    result = run.result()
    if result is not None:
        return row | {
            "rounds_done": result.rounds,
            "best_accuracy": result.best_accuracy,
            "best_round": result.best_round,
            "status": result.status,
        }
    history = run.history()
    best = best_record(history)
    return row | {
        "rounds_done": history[-1].round if history else 0,
        "best_accuracy": best.accuracy.pooled if best and best.accuracy else None,
        "best_round": best.round if best else None,
        "status": "unfinished",
    }
