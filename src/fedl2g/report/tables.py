"""Terminal tables about single runs: result, profile, machine, leakage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rich.table import Table

from fedl2g.privacy.noise_key import KEY_VARIABLE
from fedl2g.report.comparison import percent
from fedl2g.round.record import RoundRecord, chosen_on, epsilon_text
from fedl2g.runs.deployed import SiteRecord
from fedl2g.runs.result import RunResult

if TYPE_CHECKING:
    from fedl2g.leakage.probe import Leak


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
        "client accuracy": f"{percent(result.mean_client_accuracy, result.std_client_accuracy)} % (best round, over "
        "clients)",
        **{f"{name} accuracy": f"{value:.2%} (best round)" for name, value in result.other_accuracies.items()},
        "per round": f"{result.up_mb_per_round:.3f} MB up, {result.down_mb_per_round:.3f} MB down",
        "time per round": f"a client {result.client_seconds_per_round:.3f} s (mean, without warm-up), server "
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


def sites_table(sites: Mapping[int, SiteRecord]) -> Table:
    """The sites of a deployment, as far as their files allow."""
    table = Table("client", "site", "network", "training samples", "test samples")
    for client, site in sites.items():
        counts = ("not disclosed" if count is None else str(count) for count in (site.train_samples, site.test_samples))
        table.add_row(str(client), site.name, site.model or "not disclosed", *counts)
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
            "" if leak.epsilon is None else epsilon_text(leak.epsilon, leak.guarantee),
        )
    table.caption = (
        "AUC of guessing a client's classes from its uploads, and of guessing, with its network, whether a sample was "
        "in an upload: 1 is certainty, 0.5 is guessing; " + chosen_on(*(one.selection for one in shown))
    )
    return table


def _further_scores(result: RunResult) -> dict[str, str]:
    scores = {
        "validation accuracy": (result.validation_accuracy, "best round"),
        "balanced accuracy": (result.balanced_accuracy, "best round, mean over clients"),
        "macro F1": (result.macro_f1, "best round, mean over clients"),
    }
    return {name: f"{value:.2%} ({where})" for name, (value, where) in scores.items() if value is not None}


def _guarantee(result: RunResult) -> dict[str, str]:
    if result.epsilon is None:
        return {}
    return {"privacy": guarantee_text(result)}


def guarantee_text(result: RunResult) -> str:
    """The guarantee of a run that has one, and what it is worth."""
    worth = "" if result.guarantee == "secret noise" else f"; simulated: the noise is not secret without {KEY_VARIABLE}"
    return f"({result.epsilon:.3g}, {result.delta:g})-differential privacy of uploads, by client{worth}"
