"""`fedl2g methods`, `models`, `datasets` and `explain`: list the available choices."""

from __future__ import annotations

import shutil
import textwrap
from typing import TYPE_CHECKING, Any

import click

from fedl2g.cli.completion import complete_with, method_names, setting_names
from fedl2g.cli.options import json_option, plugin_option, quiet_option
from fedl2g.cli.output import Display, print_json, print_line, print_tables

if TYPE_CHECKING:
    from fedl2g.methods.registry import Method


@click.command("methods")
@click.argument(
    "name", required=False, shell_complete=complete_with(method_names), help="A method to describe; all if omitted."
)
@plugin_option
@json_option
def list_methods(name: str | None, as_json: bool) -> None:
    """List the methods, or describe one: its loss, its options, what it sends and when to use it."""
    from fedl2g.methods.registry import get_method

    found = [get_method(one) for one in (method_names() if name is None else [name])]
    rows = [_method_row(method) for method in found]
    if name is not None:
        _show_method(found[0], rows[0], as_json=as_json)
    elif as_json:
        print_json(rows)
    else:
        from fedl2g.report.listings import method_table

        print_tables(method_table(rows))


def _method_row(method: Method) -> dict[str, Any]:
    fields = {name: field for name, field in method.options.model_fields.items() if name != "name"}
    options = {name: {"default": field.default, "description": field.description} for name, field in fields.items()}
    return {"name": method.name, "summary": method.summary, "options": options}


def _show_method(method: Method, row: dict[str, Any], *, as_json: bool) -> None:
    advice = method.traits.advice
    if as_json:
        more = {"description": method.description, "sends": method.sends, "advice": advice}
        print_json({**row, **more})
        return
    from fedl2g.experiment import explain_options

    options = explain_options(method)
    print_line(f"{method.name}: {method.summary}\n\n{_wrapped(method.description)}\n")
    print_line(_wrapped(f"A client sends: {method.sends}") + "\n")
    print_line("Options (--set method.NAME=VALUE):" if options else "It has no options.")
    for name, text in options.items():
        print_line(_wrapped(f"{name}: {text}", "  ", "      "))
    if advice:
        print_line("\n" + _wrapped(f"When to use it: {advice}"))


def _wrapped(text: str, first: str = "", others: str = "") -> str:
    """Text that fits the terminal; paragraphs with indented lines (formulas, lists) stay as they are."""
    width = min(shutil.get_terminal_size().columns, 120)
    return "\n\n".join(
        part if "\n " in f"\n{part}" else textwrap.fill(part, width, initial_indent=first, subsequent_indent=others)
        for part in text.split("\n\n")
    )


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
    from fedl2g.datasets import describe_datasets

    names = ("name", "kind", "description", "samples", "classes", "image_size", "groups", "download_megabytes")
    rows = [{name: getattr(entry, name) for name in names} for entry in describe_datasets()]
    if as_json:
        print_json(rows)
        return
    from fedl2g.report.listings import dataset_table

    print_tables(dataset_table(rows))
    print_line(
        "Your own: an .npz file with `images` (or `inputs`) and `labels`, a CSV or parquet file with --label COLUMN\n"
        "(and --text COLUMN), a folder of images by class, a folder of domains by class, or a Python function\n"
        "package.module:function that returns (inputs, labels)."
    )


@click.command("explain")
@click.argument(
    "setting",
    required=False,
    shell_complete=complete_with(setting_names),
    help="A setting, e.g. rounds or method.server_lr; all if omitted.",
)
@plugin_option
def explain_setting(setting: str | None) -> None:
    """Explain a setting: its meaning, allowed values and default."""
    from fedl2g.experiment import documented_fields, explain

    for name, text in documented_fields() if setting is None else [(setting, explain(setting))]:
        print_line(f"{name}: {text}")
