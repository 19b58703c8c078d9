"""Terminal tables about runs: result, profile, machine, comparison of methods, leakage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from fedl2g.round.record import RoundRecord, chosen_on
from fedl2g.runs.result import RunResult, aggregate, other_predictors

if TYPE_CHECKING:
    from fedl2g.leakage.probe import Leak


def comparison_table(results: Mapping[str, Sequence[RunResult]]) -> Table:
    """A row per method: mean and standard deviation over the seeds; the best accuracy is bold."""
    rows = {label: aggregate(found) for label, found in results.items() if found}
    top = max((row["best_accuracy"][0] for row in rows.values()), default=0.0)
    table = Table(title="Test accuracy in % (pooled over clients), mean ± std over seeds")
    table.add_column("method", no_wrap=True)
    for column in ("best", "last", "mean client", "at round", "up MB", "down MB", "client s", "server s", "seeds"):
        table.add_column(column, justify="right")
    for label, row in rows.items():
        best = _percent(*row["best_accuracy"])
        table.add_row(
            label,
            f"[bold]{best}[/bold]" if row["best_accuracy"][0] == top else best,
            _percent(*row["last_accuracy"]),
            _percent(*row["mean_client_accuracy"]),
            f"{row['best_round'][0]:.0f}",
            f"{row['up_mb_per_round'][0]:.3f}",
            f"{row['down_mb_per_round'][0]:.3f}",
            f"{row['client_seconds_per_round'][0]:.2f}",
            f"{row['server_seconds_per_round'][0]:.3f}",
            str(len(results[label])) + _unusual(results[label]),
        )
        for name in other_predictors(results[label]):
            table.add_row(f"  its {name}", _percent(*row[f"{name}_accuracy"]))
    table.caption = (
        f"{_selections(results.values())}; MB and seconds are per round, summed over participants; 'at round' is where "
        "the best was reached"
    )
    return table


def result_table(result: RunResult) -> Table:
    """One run's result, a line per number."""
    table = Table(show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column()
    for name, value in {
        "method": result.method,
        "rounds": f"{result.rounds} ({result.status})",
        "best accuracy": f"{result.best_accuracy:.2%} (round {result.best_round}; {chosen_on(result.selection)})",
        **_further_scores(result),
        "last accuracy": f"{result.last_accuracy:.2%}",
        "client accuracy": f"{result.mean_client_accuracy:.2%} ± {result.std_client_accuracy:.2%} (best round)",
        **{f"{name} accuracy": f"{value:.2%} (best round)" for name, value in result.other_accuracies.items()},
        "per round": f"{result.up_mb_per_round:.3f} MB up, {result.down_mb_per_round:.3f} MB down",
        "time per round": f"clients {result.client_seconds_per_round:.2f} s in total, server "
        f"{result.server_seconds_per_round:.3f} s",
        **_guarantee(result),
        **({"refused": f"{result.refused} replies"} if result.refused else {}),
        "run": result.run,
    }.items():
        table.add_row(name, value)
    return table


def profile_table(history: Iterable[RoundRecord]) -> Table:
    """CPU seconds of all rounds by phase, largest first."""
    from fedl2g.learning.profiling import total_profile

    parts = total_profile(record.profile_seconds for record in history)
    whole = sum(parts.values()) or 1.0
    table = Table("phase", "seconds", "share", title="profile (CPU seconds, all rounds)")
    for name, seconds in sorted(parts.items(), key=lambda part: -part[1]):
        table.add_row(name, f"{seconds:.2f}", f"{seconds / whole:.1%}")
    return table


def machine_table(environment: Mapping[str, Any]) -> Table:
    """The machine that started a run, and its packages."""
    table = Table(show_header=False, box=None)
    for name in ("fedl2g", "commit", "python", "cpu", "cpus", "platform"):
        table.add_row(name, str(environment.get(name)))
    packages = environment.get("packages", {})
    table.add_row("packages", ", ".join(f"{name} {version}" for name, version in packages.items() if version))
    return table


def leak_table(leaks: Iterable[Leak]) -> Table:
    """A row per method: its leakage and its accuracy."""
    table = Table("method", "best accuracy", "AUC, one round", "AUC, all rounds", "AUC, samples", "up MB", "epsilon")
    shown = list(leaks)
    for leak in shown:
        table.add_row(
            leak.method,
            f"{leak.accuracy:.2%}",
            f"{leak.one_round:.3f}",
            f"{leak.all_rounds:.3f}",
            "" if leak.samples is None else f"{leak.samples:.3f}",
            f"{leak.up_mb_per_round:.3f}",
            "" if leak.epsilon is None else f"{leak.epsilon:.3g}",
        )
    table.caption = (
        "AUC of guessing a client's classes from its uploads, and of guessing, with its network, whether a sample was "
        "in an upload: 1 is certainty, 0.5 is guessing; "
        + ", ".join(sorted({chosen_on(one.selection) for one in shown}))
    )
    return table


def _further_scores(result: RunResult) -> dict[str, str]:
    scores = {
        "validation accuracy": (result.validation_accuracy, "best round"),
        "balanced accuracy": (result.balanced_accuracy, "best round, mean over clients"),
        "macro F1": (result.macro_f1, "best round, mean over clients"),
    }
    return {name: f"{value:.2%} ({where})" for name, (value, where) in scores.items() if value is not None}


def _selections(results: Iterable[Sequence[RunResult]]) -> str:
    """How the best rounds of these results were chosen."""
    return ", ".join(sorted({chosen_on(result.selection) for found in results for result in found}))


def _guarantee(result: RunResult) -> dict[str, str]:
    if result.epsilon is None:
        return {}
    return {"privacy": f"({result.epsilon:.3g}, {result.delta:g})-differential privacy of uploads, by client"}


def _percent(mean: float, std: float) -> str:
    return f"{100 * mean:.2f} ± {100 * std:.2f}"


def _unusual(results: Sequence[RunResult]) -> str:
    diverged = [result for result in results if result.status == "diverged"]
    return f" ({len(diverged)} diverged, round {diverged[0].rounds + 1})" if diverged else ""
