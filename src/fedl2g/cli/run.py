"""`fedl2g run` and `fedl2g resume`: start or continue one experiment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedl2g.cli.options import (
    ExperimentCommand,
    Settings,
    json_option,
    out_option,
    plugin_option,
    quiet_option,
    run_argument,
    track_option,
    trust_option,
)
from fedl2g.cli.output import Display, print_json, print_line, print_tables, print_tracked

if TYPE_CHECKING:
    from fedl2g.runs.result import RunResult


@click.command("run", cls=ExperimentCommand)
@out_option
@plugin_option
@track_option
@json_option
@quiet_option
def run_experiment(settings: Settings, out: Path | None, track: str, as_json: bool, quiet: bool) -> None:
    """Run one experiment; an interrupted run in the same directory is continued."""
    experiment = settings.experiment()
    from fedl2g.runs.runner import default_directory, run
    from fedl2g.runs.tracking import trackers

    path = out or default_directory(experiment)
    with Display(quiet) as display:
        progress = display.follow()
        result = run(experiment, path, [progress, *trackers(track, path)], progress=progress.loading)
    _show_result(result, track, as_json)


@click.command("resume", cls=ExperimentCommand, fields=("execution.engine", "execution.workers"), whole=False)
@run_argument
@trust_option
@plugin_option
@track_option
@json_option
@quiet_option
def resume_run(settings: Settings, directory: Path, trust: bool, track: str, as_json: bool, quiet: bool) -> None:
    """Continue an interrupted run; the numbers are those of an uninterrupted one."""
    from fedl2g.runs.runner import resume
    from fedl2g.runs.tracking import trackers

    execution = {name.removeprefix("execution."): value for name, value in settings.overrides.items()}
    with Display(quiet) as display:
        progress = display.follow()
        observers = [progress, *trackers(track, directory)]
        result = resume(directory, observers, execution=execution, trust=trust, progress=progress.loading)
    _show_result(result, track, as_json)


def _show_result(result: RunResult, track: str, as_json: bool) -> None:
    from fedl2g.report.figures import draw_curves
    from fedl2g.runs.directory import RunDirectory

    run = RunDirectory(Path(result.run))
    history = run.history()
    figure = draw_curves({result.method: [history]}, run.figures / "curves.png")
    if any(record.away for record in history):
        from fedl2g.report.presence import draw_presence

        draw_presence(history, run.about()["clients"], run.figures / "presence.png")
    if as_json:
        print_json(result.to_dict())
        return
    from fedl2g.report.tables import profile_table, result_table

    print_tables(result_table(result))
    if any(record.profile_seconds for record in history):
        print_tables(profile_table(history))
    print_line(f"figure: {figure}")
    print_tracked(track, [run.path])
