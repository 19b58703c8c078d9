"""`fedl2g compare`: several methods and seeds on the same partitions and initial models."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedl2g.cli.completion import PROGRAM
from fedl2g.cli.options import (
    ExperimentCommand,
    Settings,
    jobs_option,
    json_option,
    methods_complete,
    metrics_option,
    out_option,
    plugin_option,
    quiet_option,
    track_option,
    without,
)
from fedl2g.cli.output import print_json, print_line, print_tables, print_tracked, screen_width

if TYPE_CHECKING:
    from fedl2g.runs.comparison import Comparison


@click.command("compare", cls=ExperimentCommand, fields=without("method", "execution.profile"))
@click.option(
    "-m",
    "--methods",
    shell_complete=methods_complete,
    default="local,fedl2g-l,fedl2g-f",
    show_default=True,
    help="The methods. Options follow a name, as in local,fedl2g-f,fedl2g-f:server_lr=0.",
)
@click.option(
    "--seeds", type=click.IntRange(min=1), default=1, show_default=True, help="The number of seeds, starting at --seed."
)
@click.option(
    "--against",
    metavar="METHOD",
    shell_complete=methods_complete,
    help="Compare the others with this one of the methods.  [default: local, where it is among them]",
)
@jobs_option
@out_option
@plugin_option
@metrics_option
@track_option
@json_option
@quiet_option
def compare_methods(
    settings: Settings,
    methods: str,
    seeds: int,
    against: str | None,
    jobs: int,
    out: Path | None,
    metrics: tuple[str, ...],
    track: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run several methods and seeds on the same partitions and initial models; resumable as a whole."""
    from fedl2g.runs.comparing import run_comparison
    from fedl2g.runs.comparison import Comparison
    from fedl2g.runs.console import progress_console
    from fedl2g.runs.tracking import trackers

    comparison = Comparison.plan(settings.file, settings.overrides, methods.split(","), seeds, out, against)
    if track:
        os.environ["FEDL2G_TRACK"] = track  # for runs in subprocesses
    with _continued_by_this_command():
        data = run_comparison(
            comparison, progress_console(quiet), jobs=jobs, observers=lambda path: trackers(track, path)
        )
    if any(comparison.results.values()):
        if metrics:
            comparison.score(metrics, data)
        _show(comparison, as_json)
        if not as_json:
            print_tracked(track, list(comparison.experiments))
    comparison.check()


@contextmanager
def _continued_by_this_command() -> Iterator[None]:
    """After Ctrl-C, say how to continue the whole comparison, not only the interrupted run."""
    from fedl2g.runs.execute import Interrupted

    try:
        yield
    except (Interrupted, KeyboardInterrupt) as error:
        command = shlex.join([PROGRAM, *sys.argv[1:]])
        raise Interrupted(
            f"interrupted; finished runs and checkpoints are kept; continue the comparison with `{command}`"
        ) from error


def _show(comparison: Comparison, as_json: bool) -> None:
    from fedl2g.report.collect import Group, read_runs
    from fedl2g.report.figures import write_figure

    comparison.write()
    groups = [Group(label, tuple(read_runs(paths, trust=True))) for label, paths in comparison.finished().items()]
    figure = write_figure("curves", groups, comparison.directory / "curves.png")
    if as_json:
        print_json(comparison.to_dict())
        return
    from fedl2g.report.comparison import comparison_table
    from fedl2g.report.tables import guarantee_text

    print_tables(comparison_table(comparison.results, comparison.differences, screen_width()))
    for verdict in comparison.verdict_lines():
        print_line(verdict)
    for label, results in comparison.results.items():
        for text in dict.fromkeys(guarantee_text(result) for result in results if result.epsilon is not None):
            print_line(f"{label}: {text}")
    if comparison.scores:
        from fedl2g.report.score_tables import compared_scores_table

        print_tables(compared_scores_table(comparison.scores))
    print_line(f"Runs, comparison.json and {figure.name} are in {comparison.directory}")
