"""What the convergence study found, as values, as text (Markdown that is legible in a terminal) and as CSV."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fedl2g.paper.convergence import Convergence, ConvergenceStudy
from fedl2g.paper.theorem import LEFT_OUT, largest_rate, rounds_needed, theorem_1

SHOWN_ROUNDS = (1, 2, 5, 10, 20, 60, 100, 200, 400)

Row = dict[str, Any]


def findings(study: ConvergenceStudy) -> dict[str, list[Row]]:
    """Every table of the study by name: constants, theorem_1, rounds, theorem_2, requirements."""
    return {
        "constants": [_constants(run) for run in study.runs],
        "theorem_1": [row for run in study.runs for row in _theorem_1(run)],
        "rounds": [row for run in study.runs for row in _rounds(run)],
        "theorem_2": [row for run in study.runs for row in _theorem_2(run)],
        "requirements": [_requirement(run, epsilon) for run in study.runs for epsilon in study.epsilons],
    }


def convergence_text(study: ConvergenceStudy) -> str:
    """The constants, theorem 1, theorem 2 and the rates and rounds it asks for, with what lemma 2 leaves out."""
    tables = findings(study)
    shown = [row for row in tables["rounds"] if row["round"] in SHOWN_ROUNDS]
    averages = [row for row in tables["theorem_2"] if row["T"] in SHOWN_ROUNDS]
    problem = study.runs[0].problem
    parts = [
        "### The paper's convergence statement on a small problem",
        f"FedL2G-l, client 0 of {problem.clients}, {problem.rounds} rounds; one run for each server rate eta_s.",
        f"**What lemma 2 leaves out.** {LEFT_OUT}",
        "Constants, estimated on the run (row and distance belong to the bound for the squared loss):",
        _table(tables["constants"]),
        "Theorem 1, one round: in how many rounds the measured loss at the start of the next round stays under the "
        "bound, and the slack (bound minus measured). Drift: how much the server's step raised the loss at most, and "
        "how much the bound allows.",
        _table(tables["theorem_1"]),
        "Theorem 1 round by round (convergence.csv has all rounds):",
        _table(shown),
        "Theorem 2: the average over T rounds of the sum over a round's steps of |grad L|^2. The paper's bound takes "
        "Delta; the bound for the squared loss needs only L >= 0 and takes the first loss.",
        _table(averages),
        "What theorem 2 asks for to be below epsilon, with the constants above: eta_c below a limit, and T rounds (at "
        "half the limit, which asks for the fewest, and at the eta_c of the run).",
        _table(tables["requirements"]),
    ]
    return "\n\n".join(parts) + "\n"


def convergence_csv(study: ConvergenceStudy) -> str:
    """A line per run and round: the losses, theorem 1's two bounds, theorem 2's average and two bounds."""
    out = io.StringIO()
    writer = csv.writer(out)
    names = "server_lr round start squared_norms trained end paper_1 squared_loss_1 average paper_2 squared_loss_2"
    writer.writerow(names.split())
    for run in study.runs:
        for one, two, r in zip(_rounds(run), _theorem_2(run), run.rounds, strict=True):
            _, number, _, _, *bounds_1 = one.values()
            _, _, average, *bounds_2 = two.values()
            values = [r.start, r.squared_norms, r.trained, r.end, *bounds_1, average, *bounds_2]
            writer.writerow([run.problem.server_lr, number, *(f"{value:.6g}" for value in values)])
    return out.getvalue()


def _constants(run: Convergence) -> Row:
    c = run.constants
    return {
        "eta_s": c.server_lr,
        "eta_c": c.client_lr,
        "E": c.steps,
        "L1": c.smoothness,
        "sigma": c.sigma,
        "R": c.gradient,
        "R'": c.own_gradient,
        "Delta": c.delta,
        "first loss": run.rounds[0].start,
        "row": run.row,
        "distance": run.distance,
    }


def _theorem_1(run: Convergence) -> list[Row]:
    largest = max(r.end - r.trained for r in run.rounds)
    rows = []
    for name, drift in run.drifts().items():
        slacks = run.slacks(drift)
        rows.append(
            {
                "eta_s": run.problem.server_lr,
                "bound": name,
                "holds in": sum(slack >= 0 for slack in slacks),
                "of": len(slacks),
                "least slack": min(slacks),
                "median slack": statistics.median(slacks),
                "largest drift": largest,
                "allowed drift": drift,
            }
        )
    return rows


def _rounds(run: Convergence) -> list[Row]:
    return [
        {"eta_s": run.problem.server_lr, "round": number, "loss at its start": r.start, "at the next": r.end}
        | {name: theorem_1(r.start, [r.squared_norms], run.constants, drift) for name, drift in run.drifts().items()}
        for number, r in enumerate(run.rounds, start=1)
    ]


def _theorem_2(run: Convergence) -> list[Row]:
    bounds = run.bounds()
    return [
        {"eta_s": run.problem.server_lr, "T": number + 1, "measured": average}
        | {name: bound[number] for name, bound in bounds.items()}
        for number, average in enumerate(run.averages())
    ]


def _requirement(run: Convergence, epsilon: float) -> Row:
    """The admissible eta_c, and the T that theorem 2 asks for; None where no T is enough."""
    limit, eta = largest_rate(epsilon, run.constants), run.problem.client_lr
    return {
        "eta_s": run.problem.server_lr,
        "epsilon": epsilon,
        "eta_c below": limit,
        "T at half of it": rounds_needed(epsilon, run.constants, limit / 2),
        f"T at eta_c = {eta:g}": rounds_needed(epsilon, run.constants, eta),
    }


def _text(value: str | float | None) -> str:
    """A cell of a table."""
    match value:
        case None:
            return "no T is enough"
        case str():
            return value
        case int():
            return f"{value:,}"
        case _:
            return f"{value:.4g}"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [list(rows[0]), *([_text(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    texts = [
        "| " + " | ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    rule = "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|"
    return "\n".join([texts[0], rule, *texts[1:]])
