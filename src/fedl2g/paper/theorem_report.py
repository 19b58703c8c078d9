"""The convergence study as text (Markdown that is legible in a terminal) and as CSV, a line per round."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Sequence

from fedl2g.paper.convergence import Convergence, ConvergenceStudy
from fedl2g.paper.theorem import LEFT_OUT, largest_rate, rounds_needed, theorem_1

SHOWN_ROUNDS = (1, 2, 5, 10, 20, 60, 100, 200, 400)


def convergence_text(study: ConvergenceStudy) -> str:
    """The constants, theorem 1, theorem 2 and the rates and rounds it asks for, with what lemma 2 leaves out."""
    parts = [
        "### The paper's convergence statement on a small problem",
        "FedL2G-l, client 0 of "
        + f"{study.runs[0].problem.clients}, {len(study.runs[0].rounds)} rounds; one run for each server rate eta_s.",
        f"**What lemma 2 leaves out.** {LEFT_OUT}",
        "Constants, estimated on the run (row and distance belong to the bound for the squared loss):",
        _constants(study.runs),
        "Theorem 1, one round: how often the measured loss at the start of the next round stays under the bound, and "
        "the slack (bound minus measured). Drift: how much the server's step raised the loss at most, and may.",
        _theorem_1(study.runs),
        "Theorem 1 round by round (all rounds are in convergence.csv):",
        _rounds(study.runs),
        "Theorem 2: the average over T rounds of the sum over a round's steps of |grad L|^2. The paper's bound takes "
        "Delta, the bound for the squared loss needs only L >= 0 and takes the first loss.",
        _theorem_2(study.runs),
        "What theorem 2 asks for to be below epsilon, with the constants above: eta_c below a limit, and T rounds (at "
        "half the limit, which asks for the fewest, and at the eta_c of the run).",
        _requirements(study),
    ]
    return "\n\n".join(parts) + "\n"


def convergence_csv(study: ConvergenceStudy) -> str:
    """A line per run and round: the losses, theorem 1's two bounds, theorem 2's average and two bounds."""
    out = io.StringIO()
    writer = csv.writer(out)
    names = "server_lr round start squared_norms trained end paper_1 squared_loss_1 average paper_2 squared_loss_2"
    writer.writerow(names.split())
    for run in study.runs:
        for number, (r, average, *bounds) in enumerate(
            zip(run.rounds, run.averages(), *run.bounds().values(), strict=True), start=1
        ):
            one = [theorem_1(r.start, [r.squared_norms], run.constants, drift) for drift in run.drifts().values()]
            values = [r.start, r.squared_norms, r.trained, r.end, *one, average, *bounds]
            writer.writerow([run.problem.server_lr, number, *(f"{value:.6g}" for value in values)])
    return out.getvalue()


def _constants(runs: Sequence[Convergence]) -> str:
    header = ["eta_s", "eta_c", "E", "L1", "sigma", "R", "R'", "Delta", "first loss", "row", "distance"]
    rows = []
    for run in runs:
        c = run.constants
        values = (c.smoothness, c.sigma, c.gradient, c.own_gradient, c.delta, run.rounds[0].start, run.row)
        rows.append([f"{c.server_lr:g}", f"{c.client_lr:g}", str(c.steps), *map(_number, (*values, run.distance))])
    return _table(header, rows)


def _theorem_1(runs: Sequence[Convergence]) -> str:
    header = ["eta_s", "bound", "holds", "least slack", "median slack", "largest drift", "drift term"]
    rows = []
    for run in runs:
        measured = max(r.end - r.trained for r in run.rounds)
        for name, drift in run.drifts().items():
            slacks = run.slacks(drift)
            holds = f"{sum(slack >= 0 for slack in slacks)} of {len(slacks)}"
            values = (min(slacks), statistics.median(slacks), measured, drift)
            rows.append([f"{run.problem.server_lr:g}", name, holds, *map(_number, values)])
    return _table(header, rows)


def _rounds(runs: Sequence[Convergence]) -> str:
    header = ["eta_s", "round", "loss at its start", "and at the next", *runs[0].drifts()]
    rows = []
    for run in runs:
        for number in _shown(run):
            r = run.rounds[number - 1]
            bounds = [theorem_1(r.start, [r.squared_norms], run.constants, drift) for drift in run.drifts().values()]
            rows.append([f"{run.problem.server_lr:g}", str(number), *map(_number, (r.start, r.end, *bounds))])
    return _table(header, rows)


def _theorem_2(runs: Sequence[Convergence]) -> str:
    header = ["eta_s", "T", "measured", *runs[0].bounds()]
    rows = []
    for run in runs:
        averages, bounds = run.averages(), run.bounds().values()
        for number in _shown(run):
            values = [averages[number - 1], *(bound[number - 1] for bound in bounds)]
            rows.append([f"{run.problem.server_lr:g}", str(number), *map(_number, values)])
    return _table(header, rows)


def _requirements(study: ConvergenceStudy) -> str:
    eta = study.runs[0].problem.client_lr
    header = ["eta_s", "epsilon", "eta_c below", "T at half of it", f"T at eta_c = {eta:g}"]
    rows = []
    for run in study.runs:
        for epsilon in study.epsilons:
            limit = largest_rate(epsilon, run.constants)
            needed = [rounds_needed(epsilon, run.constants, rate) for rate in (limit / 2, eta)]
            counts = ["no T is enough" if count is None else f"{count:,}" for count in needed]
            rows.append([f"{run.problem.server_lr:g}", f"{epsilon:g}", _number(limit), *counts])
    return _table(header, rows)


def _shown(run: Convergence) -> list[int]:
    return [number for number in SHOWN_ROUNDS if number <= len(run.rounds)]


def _number(value: float) -> str:
    return f"{value:.4g}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    texts = [
        "| " + " | ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    rule = "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|"
    return "\n".join([texts[0], rule, *texts[1:]])
