"""What is done, under way and to come of a comparison or of a paper's table, as HTML. All text is escaped."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedl2g.report.collect import Run
from fedl2g.round.record import selected_record
from fedl2g.runs.estimate import duration
from fedl2g.runs.plan import Plan, PlannedRun
from fedl2g.watch.now import state_of
from fedl2g.watch.pace import Pace

MOST_PLANS = 6
MOST_CELLS = 20_000  # of a table: a plan from elsewhere may name a method and a column for each of its runs
_RUNNING = "\N{BLACK RIGHT-POINTING TRIANGLE}"
_ABOUT = (
    f"Finished: the best accuracy in %. Running ({_RUNNING}) and interrupted (dashed): the rounds that are done. "
    "To come: \N{MIDDLE DOT}"
)


def plan_section(plans: Sequence[Plan], runs: Sequence[Run], pace: Pace) -> str:
    """A table for each plan, those with something left to do first; nothing without plans."""
    by_path = {run.directory.path: run for run in runs}
    shown = sorted(plans, key=lambda plan: not _waiting(plan, by_path))[:MOST_PLANS]
    parts = [_plan(plan, by_path, pace) for plan in shown]
    if not parts:
        return ""
    return f'<section id="plan"><h2>Planned runs</h2><p class="muted">{_ABOUT}</p>{"".join(parts)}</section>'


def _plan(plan: Plan, runs: Mapping[Path, Run], pace: Pace) -> str:
    by_column = any(one.column for one in plan.runs)
    cells: dict[str, dict[str, list[PlannedRun]]] = {}
    for one in plan.runs:
        column = one.column if by_column else f"seed {one.seed}"
        cells.setdefault(one.method, {}).setdefault(column, []).append(one)
    columns = list(dict.fromkeys(column for row in cells.values() for column in row))
    if large := len(cells) * len(columns) > MOST_CELLS:
        cells = {}
    head = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in columns)
    rows = "".join(
        f'<tr><th scope="row">{html.escape(method)}</th>'
        + "".join(f"<td>{' '.join(_cell(plan, one, runs) for one in row.get(column, []))}</td>" for column in columns)
        + "</tr>"
        for method, row in cells.items()
    )
    failed = "".join(
        f"<li>{html.escape(name)} failed: {html.escape(reason)}</li>" for name, reason in plan.failures.items()
    )
    table = (
        f'<div class="scroll"><table class="plan"><thead><tr><th scope="col">method</th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )
    return (
        f'<h3>{html.escape(str(plan.folder))}</h3><p class="muted">{html.escape(plan_summary(plan, runs, pace))}</p>'
        + ('<p class="muted">Too many methods and columns for a table.</p>' if large else table)
        + (f'<ul class="verdicts">{failed}</ul>' if failed else "")
    )


def plan_summary(plan: Plan, runs: Mapping[Path, Run], pace: Pace) -> str:
    """How many of the planned runs are in which state, and when the last one ends."""
    counts: dict[str, int] = {}
    for state in (_state(plan, path, runs)[0] for path in _paths(plan)):
        counts[state] = counts.get(state, 0) + 1
    left = pace.seconds_left_of(plan, runs)
    text = f"{len(_paths(plan))} runs: " + ", ".join(f"{count} {state}" for state, count in counts.items())
    return f"{text}; the last one ends in about {duration(left)}" if left is not None else text


def _paths(plan: Plan) -> list[Path]:
    """The directories of the planned runs; several columns of a paper may share one."""
    return list(dict.fromkeys(plan.folder / one.run for one in plan.runs))


def _waiting(plan: Plan, runs: Mapping[Path, Run]) -> bool:
    return any(_state(plan, path, runs)[0] in ("to come", "running", "interrupted") for path in _paths(plan))


def _state(plan: Plan, path: Path, runs: Mapping[Path, Run]) -> tuple[str, Run | None]:
    run = runs.get(path)
    if run is not None and run.status == "running":
        return "running", run
    if path.name in plan.failures:
        return "failed", run
    if run is None:
        return "to come", None
    return state_of(run), run


def _cell(plan: Plan, planned: PlannedRun, runs: Mapping[Path, Run]) -> str:
    state, run = _state(plan, plan.folder / planned.run, runs)
    text = state
    if state == "to come":
        text = "\N{MIDDLE DOT}"
    elif run is not None and state in ("running", "interrupted"):
        done = run.history[-1].round if run.history else 0
        text = f"{_RUNNING if state == 'running' else ''} {done}/{run.settings['rounds']}".strip()
    elif run is not None and run.status in ("finished", "stopped early"):
        best = selected_record(run.history)
        text = f"{100 * best.accuracy.pooled:.1f}" if best is not None and best.accuracy is not None else state
    kind = html.escape(state.split()[0])
    return f'<span class="{kind}" title="seed {planned.seed}: {html.escape(state)}">{html.escape(text)}</span>'
