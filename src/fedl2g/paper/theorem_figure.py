"""The figure of the convergence study: theorem 2 above, theorem 1 below, and what lemma 2 leaves out."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import altair as alt

from fedl2g.paper.convergence import Convergence, ConvergenceStudy
from fedl2g.paper.theorem import LEFT_OUT
from fedl2g.report.charts.curves import curves
from fedl2g.report.charts.parts import OWN_LEGENDS, Panel
from fedl2g.report.charts.render import write_chart
from fedl2g.report.charts.theme import ACCENT, Look, Style

# The paper's bound, the bound for the squared loss.
BOUNDS = (Style("#e0473a", (10, 3)), Style("#2b9348", (6, 2, 2, 2)))
MEASURED = Style(ACCENT, (1, 0))
_SIZE = (400, 240)


def draw_convergence(found: ConvergenceStudy, path: Path) -> Path:
    """A column for each server rate: theorem 2's average and bounds, and theorem 1's slack in each round."""
    return write_chart(convergence_chart(found), Look(), path)


def convergence_chart(found: ConvergenceStudy) -> alt.ConcatChart:
    """The figure as a chart."""
    panels = [draw(run) for draw in (_theorem_2, _theorem_1) for run in found.runs]
    note = textwrap.wrap(f"What lemma 2 leaves out: {LEFT_OUT}", 75 * len(found.runs))
    title = alt.TitleParams(text=note, orient="bottom", fontSize=10, fontWeight="normal", anchor="start")
    return alt.concat(*panels, columns=len(found.runs), title=title, resolve=OWN_LEGENDS)


def _theorem_2(run: Convergence) -> Panel:
    named = {"measured": run.averages(), **run.bounds()}
    styles = dict(zip(named, (MEASURED, *BOUNDS), strict=True))
    return curves(
        _lines(named),
        Look(styles),
        x="T (rounds)",
        y="sum over steps of |grad L|², mean over T",
        form="~g",
        logarithmic="xy",
        title=f"Theorem 2, eta_s = {run.problem.server_lr:g}",
        size=_SIZE,
    )


def _theorem_1(run: Convergence) -> Panel:
    named = {}
    for name, drift in run.drifts().items():
        slacks = run.slacks(drift)
        named[f"{name}: {sum(slack >= 0 for slack in slacks)} of {len(slacks)}"] = slacks
    return curves(
        _lines(named),
        Look(dict(zip(named, BOUNDS, strict=True))),
        x="round",
        y="slack: bound minus measured loss",
        form="~g",
        zero=True,
        title=f"Theorem 1, eta_s = {run.problem.server_lr:g} (below: rounds in which it holds)",
        size=_SIZE,
    )


def _lines(named: Mapping[str, Sequence[float]]) -> dict[str, dict[str, list[float]]]:
    return {name: {"x": list(range(1, len(values) + 1)), "y": list(values)} for name, values in named.items()}
