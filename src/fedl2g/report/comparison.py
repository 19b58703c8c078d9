"""The terminal table of a comparison: as many columns as fit, the most important first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from fedl2g.round.record import chosen_on
from fedl2g.runs.result import RunResult, aggregate, other_predictors
from fedl2g.runs.verdicts import Difference, points

NARROW = 80
_PADDING = 3  # beside a column
_METHOD = 22  # columns of a narrow screen for a method's name, if it needs as many; longer names are folded
_Row = Mapping[str, tuple[float, float | None]]


def comparison_table(
    results: Mapping[str, Sequence[RunResult]], differences: Sequence[Difference] = (), width: int = NARROW
) -> Table:
    """A row per method in the given order: mean and standard deviation over seeds; the best accuracy is bold."""
    rows = {label: aggregate(found) for label, found in results.items() if found}
    room = max(_METHOD, width // 4)
    names = {label: folded_name(label, room) for label in rows}
    needed = min(room, _longest(["method", *_lines(names, results)]))
    columns = _fitting(_columns(rows, results, differences), width - needed - _PADDING)
    table = Table(title=f"Test accuracy in % (pooled over clients), {_spread(results)}", box=box.SIMPLE_HEAD)
    table.add_column("method", overflow="fold", min_width=needed)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    top = max((row["best_accuracy"][0] for row in rows.values()), default=0.0)
    for label, row in rows.items():
        style = "bold" if row["best_accuracy"][0] == top else ""
        cells = [Text(cells[label], style if name == "best" else "") for name, cells in columns.items()]
        table.add_row(Text(names[label]), *cells)
        for name in other_predictors(results[label]):
            table.add_row(f"  its {name}", percent(*row[f"{name}_accuracy"]))
    table.caption = _caption(results, columns)
    table.caption_justify = "left"
    return table


def folded_name(label: str, room: int) -> str:
    """A method's name with its options, in lines that end after a colon; the lines after the first are indented."""
    lines = [""]
    for part in re.findall(r"[^:]*:|[^:]+$", label):
        if lines[-1].strip() and len(lines[-1]) + len(part) > room:
            lines.append("  ")
        lines[-1] += part
    return "\n".join(lines)


def percent(mean: float, std: float | None) -> str:
    """An accuracy in percent with its deviation, if there is one."""
    if std is None:
        return f"{100 * mean:.2f}"
    shown = f"{100 * std:.2f}"
    return f"{100 * mean:.2f} ± {shown if float(shown) else '<0.01'}"


def _columns(
    rows: Mapping[str, _Row], results: Mapping[str, Sequence[RunResult]], differences: Sequence[Difference]
) -> dict[str, dict[str, str]]:
    """All columns, the most important first: their cells by method."""

    def means(name: str, form: str) -> dict[str, str]:
        return {label: f"{row[name][0]:{form}}" for label, row in rows.items()}

    def accuracies(name: str) -> dict[str, str]:
        return {label: percent(*row[name]) for label, row in rows.items()}

    def compared(show: Callable[[Difference], str]) -> dict[str, str]:
        return {**dict.fromkeys(rows, ""), **{one.method: show(one) for one in differences}}

    verdicts = {}
    if differences:
        verdicts = {
            _against(differences[0].reference): compared(
                lambda one: f"{points(one.difference)} [{points(one.low)}, {points(one.high)}]"
            ),
            "gain": compared(lambda one: str(one.gain)),
            "lose": compared(lambda one: str(one.lose)),
            "worst": compared(lambda one: points(one.worst.difference)),
            "p (Holm)": compared(lambda one: "<0.001" if one.p_holm < 0.001 else f"{one.p_holm:.3f}"),
        }
    return {
        "best": accuracies("best_accuracy"),
        **verdicts,
        "last": accuracies("last_accuracy"),
        "at round": {label: f"{row['best_round'][0]:.1f}".removesuffix(".0") for label, row in rows.items()},
        "up MB": means("up_mb_per_round", ".3f"),
        "down MB": means("down_mb_per_round", ".3f"),
        "client s": means("client_seconds_per_round", ".3f"),
        "server s": means("server_seconds_per_round", ".3f"),
        "mean client": accuracies("mean_client_accuracy"),
        "seeds": {label: str(len(results[label])) for label in rows},
    }


def _against(reference: str) -> str:
    return f"against {reference}" if len(reference) <= _METHOD // 2 else "against reference"


def _fitting(columns: dict[str, dict[str, str]], left: int) -> dict[str, dict[str, str]]:
    """The first columns that fit into the characters left, and the very first in any case."""
    kept: dict[str, dict[str, str]] = {}
    for name, cells in columns.items():
        left -= _longest([name, *cells.values()]) + _PADDING
        if left < 0 and kept:
            break
        kept[name] = cells
    return kept


def _lines(names: Mapping[str, str], results: Mapping[str, Sequence[RunResult]]) -> Iterable[str]:
    for label, name in names.items():
        yield from name.splitlines()
        yield from (f"  its {predictor}" for predictor in other_predictors(results[label]))


def _longest(texts: Iterable[str]) -> int:
    return max(map(len, texts))


def _spread(results: Mapping[str, Sequence[RunResult]]) -> str:
    seeds = {len(found) for found in results.values() if found}
    if seeds == {1}:
        return "one seed"
    return f"mean ± std over {seeds.pop()} seeds" if len(seeds) == 1 else "mean ± std over seeds"


_MEANINGS = {
    "gain": "gain, lose: clients whose accuracy changes by more than the noise of their test samples",
    "worst": "worst: points of the client that loses most",
    "p (Holm)": "p: signed ranks of clients, corrected for the number of methods",
    "at round": "at round: where the best was reached",
    "up MB": "MB: per round, all clients",
    "client s": "client s: per round, mean of a client, without warm-up",
}


def _caption(results: Mapping[str, Sequence[RunResult]], columns: Mapping[str, object]) -> str:
    all_results = [result for found in results.values() for result in found]
    chosen = chosen_on(*(result.selection for result in all_results))
    diverged = [
        f"{label} diverged with seed {result.seed} in round {result.rounds + 1}"
        for label, found in results.items()
        for result in found
        if result.status == "diverged"
    ]
    return "; ".join([chosen, *diverged, *(text for name, text in _MEANINGS.items() if name in columns)])
