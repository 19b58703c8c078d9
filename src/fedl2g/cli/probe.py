"""`fedl2g probe`: measure what the uploads of a method leak."""

from __future__ import annotations

import click

from fedl2g.cli.options import (
    ExperimentCommand,
    Settings,
    json_option,
    methods_complete,
    plugin_option,
    quiet_option,
    without,
)
from fedl2g.cli.output import Display, print_json, print_tables


@click.command(
    "probe",
    cls=ExperimentCommand,
    fields=without("method", "execution.engine", "execution.workers", "execution.profile"),
)
@click.option(
    "-m",
    "--methods",
    shell_complete=methods_complete,
    default="fedproto,feddistill,fedl2g-l,fedl2g-f",
    show_default=True,
    help="The methods; they must upload class vectors. Options follow a name, as in fedl2g-f:warmup_rounds=5.",
)
@plugin_option
@json_option
@quiet_option
def probe_methods(settings: Settings, methods: str, as_json: bool, quiet: bool) -> None:
    """Measure leakage: how well an attacker infers a client's classes and samples from its uploads."""
    experiments = [settings.with_method(method).experiment() for method in methods.split(",")]
    from fedl2g.leakage.probe import probe

    leaks = []
    with Display(quiet) as display:
        for experiment in experiments:
            progress = display.follow(experiment.method.name)
            leaks.append(probe(experiment, [progress], progress=progress.loading))
    if as_json:
        print_json([leak.to_dict() for leak in leaks])
        return
    from fedl2g.report.tables import leak_table

    print_tables(leak_table(leaks))
