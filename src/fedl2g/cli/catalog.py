"""`fedl2g methods`, `models`, `datasets` and `explain`: list the available choices."""

from __future__ import annotations

import click

from fedl2g.cli.options import json_option, plugin_option, quiet_option
from fedl2g.cli.output import Display, print_json, print_line, print_tables


@click.command("methods")
@plugin_option
@json_option
def list_methods(as_json: bool) -> None:
    """List the methods and their options."""
    from fedl2g.methods.registry import get_method, method_names

    methods = [get_method(name) for name in method_names()]
    rows = [
        {
            "name": method.name,
            "summary": method.summary,
            "options": {
                name: {"default": field.default, "description": field.description}
                for name, field in method.options.model_fields.items()
                if name != "name"
            },
        }
        for method in methods
    ]
    if as_json:
        print_json(rows)
        return
    from fedl2g.report.listings import method_table

    print_tables(method_table(rows))


@click.command("models")
@click.option(
    "--time/--no-time",
    default=True,
    show_default=True,
    help="Measure the time of a training step (once per machine).",
)
@click.option("--size", type=click.IntRange(28, 1024), default=32, show_default=True, help="Image size in pixels.")
@click.option("--classes", type=click.IntRange(min=2), default=100, show_default=True, help="Number of classes.")
@json_option
@quiet_option
def list_models(time: bool, size: int, classes: int, as_json: bool, quiet: bool) -> None:
    """List the architectures with parameters, feature width and step time, and the model groups."""
    from fedl2g.models.catalog import ARCHITECTURES, GROUPS
    from fedl2g.models.overview import describe_model

    rows = []
    with Display(quiet) as display, display.working("building") as tick:
        for number, name in enumerate(ARCHITECTURES):
            tick(f"measuring {name}" if time else name, number, len(ARCHITECTURES))
            rows.append(describe_model(name, classes=classes, image_size=size, measure=time))
    if as_json:
        print_json({"architectures": rows, "groups": GROUPS})
        return
    from fedl2g.report.listings import group_table, model_table

    print_tables(model_table(rows, f"{size} px, {classes} classes, batch of 10"), group_table(GROUPS))


@click.command("datasets")
@json_option
def list_datasets(as_json: bool) -> None:
    """List the named datasets and the other accepted forms."""
    from fedl2g.data import describe_datasets

    names = ("name", "description", "images", "classes", "image_size", "domains", "download_megabytes")
    rows = [{name: getattr(entry, name) for name in names} for entry in describe_datasets()]
    if as_json:
        print_json(rows)
        return
    from fedl2g.report.listings import dataset_table

    print_tables(dataset_table(rows))
    print_line(
        "Your own: an .npz file with `images` and `labels`, a folder of images by class, a folder of domains by\n"
        "class, or a Python function package.module:function that returns (images, labels)."
    )


@click.command("explain")
@click.argument("setting", required=False, help="A setting, e.g. rounds or method.server_lr; all if omitted.")
@plugin_option
def explain_setting(setting: str | None) -> None:
    """Explain a setting: its meaning, allowed values and default."""
    from fedl2g.experiment import documented_fields, explain

    for name, text in documented_fields() if setting is None else [(setting, explain(setting))]:
        print_line(f"{name}: {text}")
