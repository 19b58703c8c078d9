"""`fedl2g compare`: several methods and seeds on the same partitions and initial models."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

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
from fedl2g.cli.output import Display, print_json, print_line, print_tables

if TYPE_CHECKING:
    from fedl2g.data import Dataset
    from fedl2g.errors import FedL2GError
    from fedl2g.federation import Observer
    from fedl2g.runs.comparison import Comparison


@click.command("compare", cls=ExperimentCommand, fields=without("method", "execution.profile"))
@click.option(
    "-m",
    "--methods",
    shell_complete=methods_complete,
    default="local,fedl2g-l,fedl2g-f",
    show_default=True,
    help="Methods, optionally with options: local,fedl2g-f,fedl2g-f:server_lr=0",
)
@click.option(
    "--seeds", type=click.IntRange(min=1), default=1, show_default=True, help="Number of seeds, starting at --seed."
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
    jobs: int,
    out: Path | None,
    metrics: tuple[str, ...],
    track: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run several methods and seeds on the same partitions and initial models; resumable as a whole."""
    from fedl2g.runs.comparison import Comparison

    comparison = Comparison.plan(settings.file, settings.overrides, methods.split(","), seeds, out)
    with Display(quiet) as display:
        data = _run(comparison, display, jobs, track)
    if any(comparison.results.values()):
        if metrics:
            comparison.score(metrics, data)
        _show(comparison, as_json)
    comparison.check()


def _run(comparison: Comparison, display: Display, jobs: int, track: str) -> Dataset:
    """Run what is not finished yet; returns the data."""
    from fedl2g.round.record import chosen_on
    from fedl2g.runs.batch import run_all
    from fedl2g.runs.tracking import trackers
    from fedl2g.setup import load_data

    # Once for all runs, so that a missing dataset is reported before any run starts.
    with display.working("loading data") as tick:
        data = load_data(next(iter(comparison.experiments.values())), tick)
    if track:
        os.environ["FEDL2G_TRACK"] = track  # for runs in subprocesses

    def watch(path: Path) -> list[Observer]:
        return [display.follow(path.name), *trackers(track, path)]

    def failed(path: Path, error: FedL2GError) -> None:
        comparison.failures[path] = error
        display.print(f"{path.name}: failed")

    for path, result in run_all(comparison.experiments, jobs=jobs, watch=watch, failed=failed, data=data):
        comparison.add(path, result)
        how = chosen_on(result.selection)
        display.print(f"{path.name}: best accuracy {result.best_accuracy:.2%}, round {result.best_round} ({how})")
    return data


def _show(comparison: Comparison, as_json: bool) -> None:
    from fedl2g.report.figures import draw_curves

    comparison.write()
    figure = draw_curves(comparison.histories(), comparison.directory / "curves.png")
    if as_json:
        print_json(comparison.to_dict())
        return
    from fedl2g.report.tables import comparison_table

    print_tables(comparison_table(comparison.results))
    if comparison.scores:
        from fedl2g.report.score_tables import compared_scores_table

        print_tables(compared_scores_table(comparison.scores))
    print_line(f"Runs, comparison.json and {figure.name} are in {comparison.directory}")
