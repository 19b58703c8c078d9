"""One-line overviews of runs, read without importing torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedl2g import session
from fedl2g.display import visible
from fedl2g.errors import RunError
from fedl2g.experiment import flat
from fedl2g.experiment.identity import SITES
from fedl2g.round.record import chosen_on, selected_record, selection_of
from fedl2g.runs.deployed import in_words, read_sites
from fedl2g.runs.directory import RunDirectory

_ABOUT = ("method", "dataset", "partition", "models", "clients", "seed", "rounds")
_SHOWN = {"method.name", *_ABOUT}  # settings with a column of their own
_NEVER_DIFFER = "execution."  # how a run is executed changes no number


def overview(run: RunDirectory) -> dict[str, Any]:
    """The values that `fedl2g list` shows for a run: finished, running, or interrupted (nobody works on it)."""
    about = run.about()
    row = {name: about[name] for name in _ABOUT}
    row |= {"run": str(run.path), "created": about["created"]}
    if run.deployed:  # what the sites have, not what the settings would give simulated clients
        row |= {"partition": SITES, "models": in_words(read_sites(run.path)) or SITES}
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
        "status": "running" if run.running else "interrupted",
    }


def overviews(runs: Iterable[RunDirectory]) -> list[dict[str, Any]]:
    """The overviews of runs, with the settings in which they differ; a directory that cannot be read is one row too."""
    rows: list[dict[str, Any]] = []
    settings: list[dict[str, Any]] = []
    for run in runs:
        try:
            rows.append(overview(run))
            settings.append(flat(run.settings()))
        except RunError as error:
            nothing = dict.fromkeys((*_ABOUT, "created", "rounds_done", "best_accuracy", "best_round", "selection"))
            del rows[len(settings) :]  # the overview was readable, the settings are not
            rows.append({**nothing, "run": str(run.path), "status": "damaged", "problem": str(error)})
            settings.append({})
    for row, differing in zip(rows, differences(settings), strict=True):
        row["differs"] = differing
    return rows


def differences(settings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each of several runs, the settings without a column of their own in which not all of them agree.

    The options of methods are compared among the runs of one method.
    """
    values: dict[tuple[str, object], set[str]] = {}
    for one in settings:
        for key, value in _compared(one).items():
            values.setdefault(key, set()).add(repr(value))
    # A setting that is absent from some files was not given there, which is another value.
    for key, found in values.items():
        among = [one for one in settings if one and (key[1] is None or one.get("method.name") == key[1])]
        if any(key not in _compared(one) for one in among):
            found.add("absent")
    return [
        {name: value for (name, method), value in _compared(one).items() if len(values[name, method]) > 1}
        for one in settings
    ]


def _compared(settings: Mapping[str, Any]) -> dict[tuple[str, object], Any]:
    method = settings.get("method.name")
    return {
        (name, method if name.startswith("method.") else None): value
        for name, value in settings.items()
        if name not in _SHOWN and not name.startswith(_NEVER_DIFFER)
    }


def chosen(rows: Iterable[dict[str, Any]], wanted: Mapping[str, Sequence[str]], sort: str) -> list[dict[str, Any]]:
    """The rows with one of the wanted values in each column, sorted; the most accurate and the newest come first."""
    kept = [row for row in rows if all(not values or row[name] in values for name, values in wanted.items())]
    column = {"accuracy": "best_accuracy", "rounds": "rounds_done"}.get(sort, sort)
    kept.sort(key=lambda row: row["run"])
    known = [row for row in kept if row[column] is not None]
    known.sort(key=lambda row: row[column], reverse=sort in ("accuracy", "created", "rounds"))
    return known + [row for row in kept if row[column] is None]


def as_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Overviews as a plain-text table: for hundreds of rows, rich takes longer than reading the runs."""
    named = ("method", "dataset", "partition", "models", "clients", "seed")
    lines = [(*named, "rounds", "best", "status", "differs in", "run")]
    for row in rows:
        best = "" if row["best_accuracy"] is None else f"{row['best_accuracy']:.2%}"
        done = "" if row["rounds"] is None else f"{row['rounds_done']}/{row['rounds']}"
        row = {**row, "models": row["models"] and ",".join(session.readable(row["models"].split(",")))}
        about = ["" if row[name] is None else str(row[name]) for name in named]
        differs = " ".join(f"{name}={value}" for name, value in row["differs"].items())
        lines.append((*about, done, best, row["status"], differs, row["run"]))
    kept = [column for column in zip(*lines, strict=True) if column[0] != "differs in" or any(column[1:])]
    widths = [max(map(len, column)) for column in kept]
    shown = ["  ".join(map(str.ljust, map(visible, line), widths)).rstrip() for line in zip(*kept, strict=True)]
    damaged = [visible(str(row["problem"])) for row in rows if row["status"] == "damaged"]
    return "\n".join([*shown, *damaged, f"best: {_how_chosen(rows)}"])


def _how_chosen(rows: Sequence[Mapping[str, Any]]) -> str:
    selections = {row["selection"] for row in rows if row["selection"] is not None}
    if len(selections) == 1:
        return chosen_on(*selections)
    return "best round chosen on test data; on validation data where a run has any"
