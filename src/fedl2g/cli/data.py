"""`fedl2g data`: inspect datasets and partitions."""

from __future__ import annotations

import textwrap
from pathlib import Path

import click

from fedl2g.cli.groups import OrderedGroup
from fedl2g.cli.options import PATH, ExperimentCommand, Settings, json_option, plugin_option, quiet_option
from fedl2g.cli.output import Display, print_json, print_line


@click.group("data", cls=OrderedGroup)
def data_group() -> None:
    """Inspect datasets and partitions."""


@data_group.command(
    "show",
    cls=ExperimentCommand,
    fields=("dataset", "label", "text", "ignore", "samples", "partition", "clients", "seed", "protocol"),
)
@click.option(
    "-o", "--out", "--output", "output", type=PATH, help="Also draw the chart, into this PNG, PDF or SVG file."
)
@plugin_option
@json_option
@quiet_option
def show_data(settings: Settings, output: Path | None, as_json: bool, quiet: bool) -> None:
    """Show which client holds which classes: the client x class chart of the paper's appendix."""
    experiment = settings.experiment()
    from fedl2g.report.bubbles import bubble_table, draw_bubbles
    from fedl2g.setup import load_data, partition_of

    with Display(quiet) as display, display.working("loading data") as tick:
        dataset = load_data(experiment, tick)
    partition = partition_of(experiment, dataset)
    if output is not None:
        title = f"{dataset.name}, {experiment.partition}"
        draw_bubbles(partition, dataset.labels, dataset.class_names, output, title)
    if as_json:
        sizes = [len(train) + len(test) for train, test in zip(partition.train, partition.test, strict=True)]
        counts = partition.counts(dataset.labels, dataset.classes).tolist()
        print_json({"sizes": sizes, "classes": list(dataset.class_names), "counts": counts})
        return
    print_line(bubble_table(partition, dataset.labels, dataset.classes))
    names = [f"{number} {name}" for number, name in enumerate(dataset.class_names) if name != str(number)]
    if names:
        print_line(textwrap.fill(f"classes, from the left: {', '.join(names)}", 100))


@data_group.command("schema", cls=ExperimentCommand, fields=("dataset", "label", "text", "ignore"))
@plugin_option
@quiet_option
def show_schema(settings: Settings, quiet: bool) -> None:
    """Print the `federation` table for such data: its classes and the form of a sample.

    Paste it into coordinator/experiment.toml. It names columns, categories and classes, and contains no samples.
    """
    import tomli_w

    from fedl2g.setup import load_data

    experiment = settings.experiment()
    with Display(quiet) as display, display.working("loading data") as tick:
        dataset = load_data(experiment, tick)
    table = {"classes": list(dataset.class_names), "inputs": dataset.schema.to_json()}
    print_line(tomli_w.dumps({"federation": table}).rstrip())
