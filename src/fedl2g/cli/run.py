"""`fedl2g run` and `fedl2g resume`: start or continue one experiment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedl2g.cli.options import (
    ExperimentCommand,
    Settings,
    json_option,
    metrics_option,
    out_option,
    plugin_option,
    quiet_option,
    run_argument,
    track_option,
    trust_option,
)
from fedl2g.cli.output import Display, print_json, print_line, print_tables, print_tracked
from fedl2g.errors import SettingError

if TYPE_CHECKING:
    from fedl2g.runs.result import RunResult


@click.command("run", cls=ExperimentCommand)
@out_option
@plugin_option
@metrics_option
@track_option
@json_option
@quiet_option
def run_experiment(
    settings: Settings, out: Path | None, metrics: tuple[str, ...], track: str, as_json: bool, quiet: bool
) -> None:
    """Run one experiment; if its directory holds an interrupted or shorter run, that run is continued or extended."""
    experiment = settings.experiment()
    if metrics and not experiment.execution.keep_best:
        raise SettingError("--metrics: needs the models of the best round; set execution.keep_best = true")
    from fedl2g.runs.runner import default_directory, run
    from fedl2g.runs.tracking import trackers

    path = out or default_directory(experiment)
    with Display(quiet) as display:
        progress = display.follow()
        result = run(experiment, path, [progress, *trackers(track, path)], progress=progress.loading)
    show_result(result, metrics, as_json)
    if not as_json:
        print_tracked(track, [path])


@click.command("resume", cls=ExperimentCommand, fields=("rounds", "execution.engine", "execution.workers"), whole=False)
@run_argument
@trust_option
@plugin_option
@metrics_option
@track_option
@json_option
@quiet_option
def resume_run(
    settings: Settings,
    directory: Path,
    trust: bool,
    metrics: tuple[str, ...],
    track: str,
    as_json: bool,
    quiet: bool,
) -> None:
    """Continue an interrupted run, or extend one with more --rounds; the numbers are those of an uninterrupted run."""
    from fedl2g.runs.runner import resume
    from fedl2g.runs.tracking import trackers

    given = dict(settings.overrides)
    rounds = given.pop("rounds", None)
    execution = {name.removeprefix("execution."): value for name, value in given.items()}
    with Display(quiet) as display:
        progress = display.follow()
        observers = [progress, *trackers(track, directory)]
        result = resume(
            directory, observers, rounds=rounds, execution=execution, trust=trust, progress=progress.loading
        )
    show_result(result, metrics, as_json, trust=trust)
    if not as_json:
        print_tracked(track, [directory])


def show_result(result: RunResult, metrics: tuple[str, ...], as_json: bool, *, trust: bool = True) -> None:
    """Print a run's result and write its figures."""
    from fedl2g.report.collect import group_runs, read_runs
    from fedl2g.report.figures import write_figure

    groups = group_runs(read_runs([Path(result.run)], trust=trust))
    run = groups[0].runs[0]
    history = run.history
    figure = write_figure("curves", groups, run.directory.figure("curves.png"))
    if any(record.away for record in history):
        write_figure("availability", groups, run.directory.figure("presence.png"))
    scores = None
    if metrics:
        from fedl2g.runs.scores import score_run

        scores = score_run(run.directory, metrics)
    if as_json:
        print_json({**result.to_dict(), **({"metrics": scores} if scores is not None else {})})
        return
    from fedl2g.report.tables import profile_table, result_table

    print_tables(result_table(result))
    if any(record.profile_seconds for record in history):
        print_tables(profile_table(history))
    if scores is not None:
        from fedl2g.report.score_tables import score_tables

        print_tables(*score_tables(scores))
        print_line(f"scores of every client and class: {run.directory.path / 'scores.json'}")
    print_line(f"figure: {figure}")
