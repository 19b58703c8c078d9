"""The comparison table: mean and deviation over seeds, and a row for a method's other predictor."""

from __future__ import annotations

import io
import statistics

from rich.console import Console

from fedl2g.report.tables import aggregate, comparison_table
from fedl2g.runs.result import RunResult


def result(method: str, seed: int, accuracy: float, **others: float) -> RunResult:
    return RunResult(
        method, seed, "finished", 3, accuracy, 2, accuracy, accuracy, 0.1, 1.0, others, 0.5, 0.25, 1.0, 0.01, "run"
    )


def test_another_predictor_has_a_row_of_its_own() -> None:
    protos = [result("fedproto", 0, 0.2, head=0.5), result("fedproto", 1, 0.4, head=0.8)]
    numbers = aggregate(protos)
    assert numbers["head_accuracy"] == (statistics.fmean([0.5, 0.8]), statistics.stdev([0.5, 0.8]))
    output = io.StringIO()
    console = Console(width=200, file=output)
    console.print(comparison_table({"local": [result("local", 0, 0.6)], "fedproto": protos}))
    lines = output.getvalue().splitlines()
    assert [line for line in lines if "its head" in line and "65.00 ± 21.21" in line]
    assert [line for line in lines if "fedproto" in line and "30.00 ± 14.14" in line]
    assert "head_accuracy" not in aggregate([result("local", 0, 0.6)])
