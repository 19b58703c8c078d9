"""`fedl2g list` and `fedl2g show`: inspect the runs on disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedl2g.cli.completion import complete_with, dataset_names, method_names
from fedl2g.cli.options import PATH, json_option, run_argument, trust_option
from fedl2g.cli.output import print_json, print_line, print_tables
from fedl2g.errors import SettingError
from fedl2g.files import quoted

if TYPE_CHECKING:
    from fedl2g.runs.directory import RunDirectory

_SIMULATED = ("models", "partition", "dataset")  # settings that describe simulated clients
SORTS = ("run", "accuracy", "created", "method", "dataset", "rounds", "status")
STATUSES = ("running", "interrupted", "finished", "stopped early", "diverged", "damaged")


@click.command("list")
@click.argument(
    "root", metavar="[FOLDER]", type=PATH, default=Path("runs"), help="The folder to search; runs/ if omitted."
)
@click.option("--sort", type=click.Choice(SORTS), default="run", show_default=True, help="The order of the rows.")
@click.option(
    "-m",
    "--method",
    "methods",
    multiple=True,
    shell_complete=complete_with(method_names),
    help="Only runs of this method; may be repeated.",
)
@click.option(
    "-d",
    "--dataset",
    "datasets",
    multiple=True,
    shell_complete=complete_with(dataset_names),
    help="Only runs on this dataset; may be repeated.",
)
@click.option("--status", "statuses", multiple=True, type=click.Choice(STATUSES), help="Only runs in this state.")
@json_option
def list_runs(
    root: Path,
    sort: str,
    methods: tuple[str, ...],
    datasets: tuple[str, ...],
    statuses: tuple[str, ...],
    as_json: bool,
) -> None:
    """List the runs below a folder: what is running, interrupted or finished, and the settings that differ."""
    from fedl2g.runs.directory import find_runs
    from fedl2g.runs.overview import as_text, chosen, overviews

    if not root.exists():
        raise SettingError(
            f"{root}: no such folder; name the folder that holds your runs, or start a run with `fedl2g run`"
        )
    wanted = {"method": methods, "dataset": datasets, "status": statuses}
    rows = chosen(overviews(find_runs(root)), wanted, sort)
    if as_json:
        print_json(rows)
    else:
        print_line(as_text(rows) if rows else f"no {'such ' if any(wanted.values()) else ''}runs in {root}")


@click.command("show")
@run_argument
@trust_option
@json_option
def show_run(directory: Path, trust: bool, as_json: bool) -> None:
    """Show one run: result, machine and settings."""
    from fedl2g.round.record import chosen_on
    from fedl2g.runs.deployed import as_json as sites_as_json
    from fedl2g.runs.deployed import read_sites
    from fedl2g.runs.directory import RunDirectory
    from fedl2g.runs.overview import overview

    run = RunDirectory.open(directory, trust=trust)
    row, result, environment, settings = overview(run), run.result(), run.environment(), run.settings_text()
    if as_json:
        if run.deployed:
            row["sites"] = sites_as_json(read_sites(directory))
        details = {**row, "environment": environment, "result": result.to_dict() if result else None}
        print_json({**details, "history": [record.to_dict() for record in run.history()]})
        return
    from fedl2g.report.tables import machine_table, result_table, sites_table

    print_line(f"{directory}: {row['status']}, {row['rounds_done']} of {row['rounds']} rounds")
    if result is not None:
        print_tables(result_table(result))
    elif row["status"] == "running" and row["best_accuracy"] is not None:
        how = chosen_on(row["selection"])
        print_line(f"best accuracy so far {row['best_accuracy']:.2%}, round {row['best_round']} ({how})")
    elif row["best_accuracy"] is not None:
        print_line(
            f"best accuracy so far {row['best_accuracy']:.2%} ({chosen_on(row['selection'])}); {_how_to_continue(run)}"
        )
    if run.deployed and (sites := read_sites(directory)):
        print_tables(sites_table(sites))
    print_tables(machine_table(environment))
    print_line(_of_the_sites(settings) if run.deployed else settings)


def _how_to_continue(run: RunDirectory) -> str:
    if run.deployed:
        from fedl2g.runs.deployed import how_to_continue

        return how_to_continue(run.path)
    return f"continue with `fedl2g resume {quoted(run.path)}`"


def _of_the_sites(settings: str) -> str:
    """The settings of a deployment without those that say what simulated clients would have."""
    kept = [line for line in settings.splitlines() if line.split(" = ")[0] not in _SIMULATED]
    return "\n".join(kept)
