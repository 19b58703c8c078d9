"""What is going on now, as HTML: a row for each run. Text from run directories is always escaped."""

from __future__ import annotations

import html
from collections.abc import Sequence

from fedl2g.report.cards import ALIGNMENT
from fedl2g.report.collect import Group, Run, diverged_round
from fedl2g.report.content import Content
from fedl2g.round.record import MB, selected_record
from fedl2g.runs.estimate import duration
from fedl2g.watch.pace import Pace

MOST_ROWS = 40
ABSENT = "\N{EN DASH}"
_HEAD = (
    "run", "seed", "state", "round", "time left", "accuracy %", "best %", "loss", "alignment", "took part", "refused",
    "missing", "s per round", "MB",
)  # fmt: skip


def now_section(content: Content, pace: Pace) -> str:
    """The state of the runs, those that are being worked on first; nothing without runs."""
    members = [(group, run) for group in content.groups for run in group.runs]
    if not members:
        return ""
    order = ("running", "unfinished")
    members.sort(key=lambda member: order.index(s) if (s := member[1].status) in order else len(order))
    rows = "".join(_row(group, run, pace) for group, run in members[:MOST_ROWS])
    head = "".join(f'<th scope="col">{name}</th>' for name in _HEAD)
    more = len(members) - MOST_ROWS
    rest = f'<p class="muted">{more} more in the list of run directories below.</p>' if more > 0 else ""
    return (
        f'<section id="now"><h2>Now</h2><p class="muted">{html.escape(summary(content.runs, pace))}</p>'
        f'<div class="scroll"><table id="state"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        f"{rest}</section>"
    )


def summary(runs: Sequence[Run], pace: Pace) -> str:
    """How many runs are in which state, and when the last one of those under way ends."""
    states: dict[str, int] = {}
    for run in runs:
        states[state_of(run)] = states.get(state_of(run), 0) + 1
    left = [seconds for run in runs if (seconds := pace.seconds_left(run)) is not None]
    text = ", ".join(f"{count} {state}" for state, count in states.items())
    return f"{text}; the last of the running ones ends in about {duration(max(left))}" if left else text


def _row(group: Group, run: Run, pace: Pace) -> str:
    history, total = run.history, run.settings["rounds"]
    last = history[-1] if history else None
    done = last.round if last else 0
    tested = next((r.accuracy for r in reversed(history) if r.accuracy is not None), None)
    best = selected_record(history)
    loss = next((r.loss for r in reversed(history) if r.loss is not None), None)
    alignment = next((r.metrics[ALIGNMENT] for r in reversed(history) if ALIGNMENT in r.metrics), None)
    left, each = pace.seconds_left(run), pace.seconds_per_round(run)
    replied = 0 if last is None else len(set(last.participants) - set(last.refused) - set(last.missing))
    cells = [
        str(run.seed),
        html.escape(state_of(run)),
        f'<progress max="{max(total, 1)}" value="{done}"></progress> {done} of {total}',
        ABSENT if left is None else duration(left),
        _number(None if tested is None else 100 * tested.pooled, 2),
        _number(None if best is None or best.accuracy is None else 100 * best.accuracy.pooled, 2),
        _number(loss, 4),
        _number(alignment, 3),
        f"{replied} of {html.escape(str(run.settings['clients']))}" if done else ABSENT,
        str(sum(len(record.refused) for record in history)),
        str(sum(len(record.missing) for record in history)),
        _number(each, 2),
        _number(sum(r.up_bytes + r.down_bytes for r in history) / MB, 2),
    ]
    return f'<tr><th scope="row">{html.escape(group.label)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def state_of(run: Run) -> str:
    """How a run stands, in the words of `fedl2g list`."""
    diverged = diverged_round(run)
    if diverged is not None:
        return f"diverged in round {diverged}"
    return "interrupted" if run.status == "unfinished" else run.status


def _number(value: float | None, digits: int) -> str:
    return ABSENT if value is None else f"{value:.{digits}f}"
