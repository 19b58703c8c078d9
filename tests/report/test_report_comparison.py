"""The table of a comparison: what it shows at which width."""

from __future__ import annotations

import io
import statistics
from dataclasses import replace

import pytest
from rich.console import Console

from fedl2g.report.comparison import comparison_table, folded_name, percent
from fedl2g.runs.result import RunResult, aggregate
from fedl2g.runs.verdicts import ClientChange, Difference


def result(method: str, seed: int, accuracy: float, **others: float) -> RunResult:
    return RunResult(
        method, seed, "finished", 3, accuracy, 2, accuracy, accuracy, 0.1, 1.0, others, 0.5, 0.25, 1.0, 0.01, "run"
    )


def difference(method: str) -> Difference:
    clients = tuple(ClientChange(i, None, -0.123, -0.2, -0.1, "loses") for i in range(100))
    return Difference(method, "local", (0, 1), -0.119, -0.1305, -0.1008, "all", 0.01, 0.0004, clients)


def shown(*arguments: object, width: int) -> list[str]:
    output = io.StringIO()
    Console(width=width, file=output).print(comparison_table(*arguments, width=width))
    return [line.rstrip() for line in output.getvalue().splitlines()]


LONG = "fedl2g-f:server_lr=0:warmup_rounds=10"
RESULTS = {
    "fedproto": [result("fedproto", seed, 0.8 + seed / 100) for seed in (0, 1)],
    "local": [result("local", seed, 0.9 + seed / 100) for seed in (0, 1)],
    LONG: [result("fedl2g-f", seed, 0.7) for seed in (0, 1)],
}
DIFFERENCES = [difference("fedproto"), difference(LONG)]


@pytest.mark.parametrize(
    ("width", "first", "left_out"), [(80, "lose", "worst"), (100, "p (Holm)", "last"), (140, "up MB", "client s")]
)
def test_a_wider_terminal_shows_more_columns_and_every_number_whole(width: int, first: str, left_out: str) -> None:
    lines = shown(RESULTS, DIFFERENCES, width=width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "…" not in text
    (head,) = [line for line in lines if line.split()[:1] == ["method"]]
    assert head.split()[:3] == ["method", "best", "against"]
    assert first in head
    assert left_out not in head
    assert "80.50 ± 0.71" in text
    assert "-11.9 [-13.1, -10.1]" in text
    rows = [line.split()[0] for line in lines if "±" in line and "std" not in line]
    assert rows[:2] == ["fedproto", "local"]  # as given, not by accuracy
    assert LONG.startswith(rows[2])  # folded, not cut
    assert "best round chosen on test data" in text


def test_a_long_name_is_folded_after_a_colon_and_whole_where_there_is_room() -> None:
    recommended = "fedl2g-l:preset=recommended"
    results = {"local": [result("local", 0, 0.9)], recommended: [result("fedl2g-l", 0, 0.8)]}
    narrow = shown(results, [difference(recommended)], width=80)
    first = next(number for number, line in enumerate(narrow) if line.startswith("  fedl2g-l:"))
    assert narrow[first].split()[0] == "fedl2g-l:"
    assert "80.00" in narrow[first]
    assert narrow[first + 1] == "    preset=recommended"
    assert max(map(len, narrow)) <= 80
    (wide,) = [line for line in shown(results, [difference(recommended)], width=140) if recommended in line]
    assert wide.split()[:2] == [recommended, "80.00"]
    assert folded_name(LONG, 22).split("\n") == ["fedl2g-f:server_lr=0:", "  warmup_rounds=10"]
    assert folded_name("a_name_without_options_that_is_long", 22) == "a_name_without_options_that_is_long"


def test_a_wide_terminal_shows_everything() -> None:
    (head,) = [line for line in shown(RESULTS, DIFFERENCES, width=220) if line.split()[:1] == ["method"]]
    assert head.split() == [
        "method",
        "best",
        "against",
        "local",
        "gain",
        "lose",
        "worst",
        "p",
        "(Holm)",
        "last",
        "at",
        "round",
        "up",
        "MB",
        "down",
        "MB",
        "client",
        "s",
        "server",
        "s",
        "mean",
        "client",
        "seeds",
    ]


def test_no_deviation_is_shown_where_none_is_known_or_it_is_too_small() -> None:
    assert percent(0.9, None) == "90.00"
    assert percent(0.9, 0.0) == "90.00 ± <0.01"
    assert percent(0.9, 0.00006) == "90.00 ± 0.01"
    one = shown({"local": [result("local", 0, 0.6)]}, width=140)
    assert "±" not in "\n".join(one)
    assert "one seed" in one[0]
    assert aggregate([result("local", 0, 0.6)])["best_accuracy"] == (0.6, None)
    equal = shown({"local": [result("local", seed, 0.6) for seed in (0, 1)]}, width=140)
    assert "± 0.00" not in "\n".join(equal)


def test_another_predictor_has_a_row_of_its_own() -> None:
    protos = [result("fedproto", 0, 0.2, head=0.5), result("fedproto", 1, 0.4, head=0.8)]
    numbers = aggregate(protos)
    assert numbers["head_accuracy"] == (statistics.fmean([0.5, 0.8]), statistics.stdev([0.5, 0.8]))
    lines = shown({"local": [result("local", 0, 0.6)], "fedproto": protos}, width=200)
    assert [line for line in lines if "its head" in line and "65.00 ± 21.21" in line]
    assert [line for line in lines if "fedproto" in line and "30.00 ± 14.14" in line]
    assert "head_accuracy" not in aggregate([result("local", 0, 0.6)])


def test_a_run_that_diverged_is_named() -> None:
    broken = replace(result("fedgh", 1, 0.2), status="diverged", rounds=6)
    text = " ".join(shown({"fedgh": [broken]}, width=80))
    assert "fedgh diverged with seed 1 in round 7" in text
