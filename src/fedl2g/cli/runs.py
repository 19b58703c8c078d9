"""`fedl2g list` and `fedl2g show`: inspect the runs on disk."""

from __future__ import annotations

from pathlib import Path

import click

from fedl2g.cli.options import PATH, json_option, run_argument, trust_option
from fedl2g.cli.output import print_json, print_line, print_tables
from fedl2g.errors import SettingError


@click.command("list")
@click.argument("root", type=PATH, default=Path("runs"), help="The folder to search; runs/ if omitted.")
@json_option
def list_runs(root: Path, as_json: bool) -> None:
    """List the runs below a folder."""
    from fedl2g.runs.directory import find_runs
    from fedl2g.runs.overview import as_text, overview

    if not root.exists():
        raise SettingError(
            f"{root}: no such folder; name the folder that holds your runs, or start a run with `fedl2g run`"
        )
    rows = [overview(run) for run in find_runs(root)]
    if as_json:
        print_json(rows)
    else:
        print_line(as_text(rows) if rows else f"no runs in {root}")


@click.command("show")
@run_argument
@trust_option
@json_option
def show_run(directory: Path, trust: bool, as_json: bool) -> None:
    """Show one run: result, machine and settings."""
    from fedl2g.round.record import chosen_on
    from fedl2g.runs.directory import RunDirectory
    from fedl2g.runs.overview import overview

    run = RunDirectory.open(directory, trust=trust)
    settings = (directory / "experiment.toml").read_text(encoding="utf-8")
    row, result, environment = overview(run), run.result(), run.environment()
    if as_json:
        details = {**row, "environment": environment, "result": result.to_dict() if result else None}
        print_json({**details, "history": [record.to_dict() for record in run.history()]})
        return
    from fedl2g.report.tables import machine_table, result_table

    print_line(f"{directory}: {row['status']}, {row['rounds_done']} of {row['rounds']} rounds")
    if result is not None:
        print_tables(result_table(result))
    elif row["best_accuracy"] is not None:
        print_line(
            f"best accuracy so far {row['best_accuracy']:.2%} ({chosen_on(row['selection'])}); continue with "
            f"`fedl2g resume {directory}`"
        )
    print_tables(machine_table(environment))
    print_line(settings)
