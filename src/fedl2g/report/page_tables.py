"""The tables of a page as static HTML, readable without scripts. Text from run directories is always escaped."""

from __future__ import annotations

import html
import json
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from fedl2g.report.collect import Group, Run, diverged_round
from fedl2g.report.content import Content
from fedl2g.report.drawings import reference_name
from fedl2g.report.series import accuracy_series, cost
from fedl2g.round.record import Accuracy, chosen_on, guarantee_of, selected_record, selection_of
from fedl2g.runs.verdicts import Difference, points

ABSENT = "\N{EN DASH}"
_HEAD = (
    ("method", ""),
    ("best %", "pooled test accuracy in the selected round"),
    ("against", "difference to the reference in points, with its 95 % interval"),
    ("last %", "pooled test accuracy after the last round"),
    ("at round", "the selected round, mean over seeds"),
    ("up MB", "per round, all participants together"),
    ("down MB", "per round, all participants together"),
    ("client s", "of one client per round, mean over clients, without warm-up rounds"),
    ("warm-up s", "of one client per warm-up round, mean over clients"),
    ("server s", "per round"),
    ("seeds", ""),
)


def results_table(content: Content) -> str:
    """A row per method in the given order; numbers to sort by stand in `data-value`."""
    found = {one.method: one for compared in content.compared for one in compared.differences}
    against = f"points against {html.escape(reference_name(content.compared))}"
    head = [(against if name == "against" else name, about) for name, about in _HEAD if found or name != "against"]
    top = max((m for group in content.groups if (m := _mean(_best(group))) is not None), default=None)
    lines = ["<thead><tr>"]
    lines += [f'<th scope="col" title="{html.escape(about)}">{name}</th>' for name, about in head]
    lines.append("</tr></thead><tbody>")
    for group in content.groups:
        cells = _cells(group, top)
        if found:
            cells.insert(1, _against(found.get(group.label)))
        label = html.escape(group.label)
        lines.append(f'<tr data-label="{label}"><th scope="row"><i></i>{label}</th>{"".join(cells)}</tr>')
    return "".join([*lines, "</tbody>"])


def results_caption(content: Content) -> str:
    """What the numbers of the table are."""
    several = any(len(group.runs) > 1 for group in content.groups)
    spread = "mean ± standard deviation over seeds" if several else "one seed, so no spread is known"
    chosen = chosen_on(*(selection_of(run.history) for run in content.runs))
    return f"Test accuracy pooled over clients, {spread}; {chosen}. Bold: the highest mean."


def _cells(group: Group, top: float | None) -> list[str]:
    best, last = _best(group), [values[-1] for run in group.runs if (values := _accuracies(run))]
    mean = _mean(best)
    text = _percent(best)
    if mean is not None and mean == top:
        text = f"<strong>{text}</strong>"
    others = "".join(
        f"<small>{html.escape(name)} {_percent(values)}</small>" for name, values in _others(group).items()
    )
    costs = [cost(run) for run in group.runs]
    spent = {name: _mean([value for one in costs if (value := one[name]) is not None]) for name in costs[0]}
    chosen = [float(record.round) for run in group.runs if (record := selected_record(run.history)) is not None]
    return [
        _cell(mean, text + others),
        _cell(_mean(last), _percent(last)),
        _cell(_mean(chosen), ABSENT if not chosen else f"{statistics.fmean(chosen):.1f}".removesuffix(".0")),
        *(_cell(spent[name], _decimal(spent[name], 3)) for name in ("up_mb", "down_mb")),
        *(_cell(spent[name], _decimal(spent[name], 3)) for name in ("client_s", "warmup_client_s")),
        _cell(spent["server_s"], _decimal(spent["server_s"], 3)),
        _cell(float(len(group.runs)), _states(group.runs)),
    ]


def _against(one: Difference | None) -> str:
    if one is None:
        return _cell(None, "<small>the reference</small>")
    span = f"[{points(one.low)}, {points(one.high)}]"
    return _cell(one.difference, f"{points(one.difference)} {span}<small>{one.verdict}</small>")


def _cell(value: float | None, text: str) -> str:
    number = "" if value is None else f' data-value="{value:.9g}"'
    return f"<td{number}>{text}</td>"


def _accuracies(run: Run) -> list[float]:
    return list(accuracy_series(run.history).values())


def _selected(group: Group) -> list[Accuracy]:
    records = [selected_record(run.history) for run in group.runs]
    return [record.accuracy for record in records if record is not None and record.accuracy is not None]


def _best(group: Group) -> list[float]:
    return [accuracy.pooled for accuracy in _selected(group)]


def _others(group: Group) -> dict[str, list[float]]:
    """The accuracies of a method's further predictors."""
    found: dict[str, list[float]] = {}
    for accuracy in _selected(group):
        for name, value in accuracy.others.items():
            found.setdefault(name, []).append(value)
    return found


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _percent(values: Sequence[float]) -> str:
    if not values:
        return ABSENT
    spread = f" ± {100 * statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.2f}{spread}"


def _decimal(value: float | None, digits: int) -> str:
    return ABSENT if value is None else f"{value:.{digits}f}"


def _states(runs: Sequence[Run]) -> str:
    unusual = [state for run in runs if (state := _state(run)) != "finished"]
    return f"{len(runs)}" + (f"<small>{html.escape('; '.join(dict.fromkeys(unusual)))}</small>" if unusual else "")


def _state(run: Run) -> str:
    diverged = diverged_round(run)
    if diverged is not None:
        return f"diverged in round {diverged}"
    done = run.history[-1].round if run.history else 0
    return f"running, round {done} of {run.settings['rounds']}" if run.status == "running" else run.status


def run_tables(content: Content) -> str:
    """What was run: settings, privacy, versions, directories."""
    groups = content.groups
    common, differing = _settings(groups)
    parts = []
    if differing:
        table = _plain(["setting", *(group.label for group in groups)], ([k, *v] for k, v in differing.items()))
        parts += ["<h3>Settings that differ</h3>", table]
    seeds = ", ".join(map(str, sorted({run.seed for run in content.runs})))
    parts += ["<h3>Settings of all runs</h3>", _plain(["setting", "value"], [["seeds", seeds], *common.items()])]
    if spent := _privacy(groups):
        head = ["method", "seed", "guarantee", "epsilon spent", "delta", "noise multiplier"]
        parts += ["<h3>Differential privacy of uploads, by client</h3>", _plain(head, spent)]
    machines = _environments(content.runs)
    shown = "".join(_plain(["", f"{count} {'run' if count == 1 else 'runs'}"], found) for found, count in machines)
    parts.append(f"<details><summary>Versions and machines ({len(machines)})</summary>{shown}</details>")
    head = ["method", "seed", "rounds", "status", "refused replies", "missing replies", "directory"]
    rows = [[group.label, *_run_row(run)] for group in groups for run in group.runs]
    parts.append(f"<details><summary>Run directories</summary>{_plain(head, rows)}</details>")
    return "".join(parts)


def _plain(head: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    def cells(tag: str, values: Iterable[object]) -> str:
        return "".join(f"<{tag}>{'' if v is None else html.escape(str(v))}</{tag}>" for v in values)

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{cells("th", head)}</tr></thead><tbody>{body}</tbody></table></div>'


def _settings(groups: Sequence[Group]) -> tuple[dict[str, str], dict[str, list[str | None]]]:
    """The settings shared by all groups, and those that differ."""
    rows = [{k: v for k, v in group.runs[0].settings.items() if k != "seed"} for group in groups]
    common: dict[str, str] = {}
    differing: dict[str, list[str | None]] = {}
    for name in dict.fromkeys(k for row in rows for k in row):
        values = [row.get(name) for row in rows]
        if all(value == values[0] for value in values):
            common[name] = str(values[0])
        else:
            differing[name] = [None if value is None else str(value) for value in values]
    return common, differing


def _privacy(groups: Sequence[Group]) -> list[list[object]]:
    names = ("epsilon", "delta", "noise_multiplier")
    return [
        [group.label, run.seed, guarantee_of(last), *(f"{last[name]:.3g}" for name in names)]
        for group in groups
        for run in group.runs
        if run.history and "epsilon" in (last := run.history[-1].privacy)
    ]


def _environments(runs: Sequence[Run]) -> list[tuple[list[tuple[str, Any]], int]]:
    seen: dict[str, int] = {}
    for run in runs:
        found = run.directory.environment()
        packages = {k: v for k, v in (found.get("packages") or {}).items() if v}
        values = {str(k): str(v) for k, v in found.items() if k != "packages" and v is not None} | packages
        key = json.dumps(sorted(values.items()))
        seen[key] = seen.get(key, 0) + 1
    return [(json.loads(key), count) for key, count in seen.items()]


def _run_row(run: Run) -> list[object]:
    return [
        run.seed,
        run.history[-1].round if run.history else 0,
        _state(run),
        sum(len(record.refused) for record in run.history),
        sum(len(record.missing) for record in run.history),
        run.directory.path,
    ]
