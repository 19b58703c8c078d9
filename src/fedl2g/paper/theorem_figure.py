"""The figure of the convergence study: theorem 2 above, theorem 1 below, and what lemma 2 leaves out."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedl2g.paper.convergence import Convergence, ConvergenceStudy
from fedl2g.paper.theorem import LEFT_OUT
from fedl2g.report import figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BOUND_COLOURS = ("#e07a5f", "#5a8f3c")  # the paper's bound, the bound for the squared loss
MEASURED_COLOUR = "#2a6f97"


def draw_convergence(found: ConvergenceStudy, path: Path) -> Path:
    """A column for each server rate: theorem 2's average and bounds, and theorem 1's slack in each round."""
    figure = figures.new_figure(path, 5.5 * len(found.runs), 8.2)
    panels = figure.subplots(2, len(found.runs), squeeze=False)
    for (above, below), run in zip(panels.T, found.runs, strict=True):
        _draw_theorem_2(above, run)
        _draw_theorem_1(below, run)
    panels[0, 0].set_ylabel("average over T rounds of\nthe sum over steps of |grad L|²")
    panels[1, 0].set_ylabel("slack: bound minus measured loss")
    note = textwrap.fill(f"What lemma 2 leaves out: {LEFT_OUT}", 70 * len(found.runs))
    figure.supxlabel(note, fontsize=8)
    return figures.save_figure(figure, path)


def _draw_theorem_2(axes: Axes, run: Convergence) -> None:
    rounds = _rounds(run)
    for (name, bound), colour in zip(run.bounds().items(), BOUND_COLOURS, strict=True):
        axes.loglog(rounds, bound, label=name, color=colour)
    axes.loglog(rounds, run.averages(), label="measured", color=MEASURED_COLOUR)
    axes.set(title=f"Theorem 2, eta_s = {run.problem.server_lr:g}", xlabel="T (rounds)")
    axes.legend(frameon=False, fontsize=8)


def _draw_theorem_1(axes: Axes, run: Convergence) -> None:
    for (name, drift), colour in zip(run.drifts().items(), BOUND_COLOURS, strict=True):
        slacks = run.slacks(drift)
        label = f"{name}: holds in {sum(slack >= 0 for slack in slacks)} of {len(slacks)}"
        axes.plot(_rounds(run), slacks, label=label, color=colour)
    axes.axhline(0, color="0.4", linewidth=0.8, linestyle="--")
    axes.set(title=f"Theorem 1, eta_s = {run.problem.server_lr:g}", xlabel="round")
    axes.set_ylim(min(0, *axes.get_ylim()))
    axes.legend(frameon=False, fontsize=8, loc="center", bbox_to_anchor=(0.6, 0.15))


def _rounds(run: Convergence) -> Sequence[int]:
    return range(1, len(run.rounds) + 1)
