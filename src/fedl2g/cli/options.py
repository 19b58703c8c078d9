"""Options shared by several commands; the options of an experiment are generated from its fields.

To give a setting its own option, add its name to `FIELDS`: name, type and help come from the experiment. Every setting
can also be given with --set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import click

from fedl2g.cli.completion import (
    Complete,
    changes,
    complete_with,
    dataset_names,
    engine_names,
    method_names,
    model_names,
    tracker_names,
)

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from fedl2g.experiment import Experiment

FIELDS = (
    "method",
    "dataset",
    "label",
    "text",
    "ignore",
    "samples",
    "partition",
    "models",
    "clients",
    "participation",
    "rounds",
    "seed",
    "protocol",
    "execution.engine",
    "execution.workers",
    "device",
    "execution.profile",
)
"""The settings with their own options, in the order of the help; a dot separates table and key."""

SHORT = {"method": "-m", "dataset": "-d", "clients": "-c", "rounds": "-r"}
"""The settings whose options have a short form. One letter means the same in every command."""

COMPLETIONS: dict[str, Complete] = {
    "method": complete_with(method_names),
    "dataset": complete_with(dataset_names),
    "models": complete_with(model_names, several=True),
    "execution.engine": complete_with(engine_names),
}
"""What the shell suggests for a setting."""

PATH = click.Path(path_type=Path)


def _load_plugins(context: click.Context, option: click.Parameter, names: tuple[str, ...]) -> None:
    from fedl2g.references import load_plugin

    for name in names:
        load_plugin(name)


# Eager: plugins must be imported before the names they register are looked up.
plugin_option = click.option(
    "--plugin",
    multiple=True,
    is_eager=True,
    expose_value=False,
    callback=_load_plugins,
    help="A Python file or module to import first, for example to register a method.",
)
out_option = click.option(
    "-o", "--out", type=PATH, help="The directory to write to; by default one below runs/, named after the settings."
)
methods_complete = complete_with(method_names, several=True)
jobs_option = click.option(
    "-j",
    "--jobs",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="The number of runs at a time, each in its own process.",
)
track_option = click.option(
    "--track",
    default="",
    envvar="FEDL2G_TRACK",
    shell_complete=complete_with(tracker_names, several=True),
    help="Also log to trackers: tensorboard,mlflow,wandb.",
)


def _read_metrics(context: click.Context, option: click.Parameter, text: str) -> tuple[str, ...]:
    if not text:
        return ()
    from fedl2g.runs.scores import parse_metrics

    return parse_metrics(text)


metrics_option = click.option(
    "--metrics",
    default="",
    callback=_read_metrics,
    help="Additional scores of the models, computed at the end: auroc,confusion.",
)
trust_option = click.option(
    "--trust", is_flag=True, help="Allow importing Python code named by the run's or site's file."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as one line of JSON.")
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Do not show progress.")
run_argument = click.argument("directory", metavar="RUN", type=PATH, help="The run directory.")


def _without_files(context: click.Context, argument: click.Parameter, paths: tuple[Path, ...]) -> tuple[Path, ...]:
    """Drop the files that a pattern such as runs/comparison/* matches beside the runs."""
    return tuple(path for path in paths if not path.is_file()) or paths


runs_argument = click.argument(
    "runs",
    metavar="RUN...",
    nargs=-1,
    required=True,
    type=PATH,
    callback=_without_files,
    help="Run directories, or folders of runs; files among them are left out.",
)


def without(*names: str) -> tuple[str, ...]:
    """`FIELDS` without those that do not apply to a command."""
    return tuple(name for name in FIELDS if name not in names)


@dataclass(frozen=True)
class Settings:
    """The settings given on the command line: an experiment file and overrides, named as for --set."""

    overrides: dict[str, Any]
    file: Path | None = None

    def experiment(self) -> Experiment:
        """The validated experiment; omitted settings have their defaults."""
        from fedl2g.experiment import Experiment, overlay

        if self.file is None:
            return Experiment(**overlay({}, self.overrides))
        return Experiment.from_file(self.file, self.overrides)

    def with_method(self, text: str) -> Settings:
        """The same settings with another method, given as name and options: fedl2g-f:server_lr=0:warmup_rounds=5."""
        from fedl2g.experiment import parse_override

        name, *options = text.strip().split(":")
        own = {f"method.{option}": value for option, value in map(parse_override, options)}
        return Settings({"method": name, **self.overrides, **own}, self.file)


class ExperimentCommand(click.Command):
    """A command with the options of an experiment; its function gets them as one argument, `settings`.

    The command has an option for each of `fields` and, unless `whole` is false, the experiment file and --set. The
    options are generated lazily: they need the experiment's fields, and `fedl2g --help` must not import pydantic.
    """

    def __init__(self, *args: Any, fields: Sequence[str] = FIELDS, whole: bool = True, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.fields = fields
        self.whole = whole

    @cached_property
    def field_options(self) -> dict[str, click.Option]:
        """The option of each field."""
        return {name: field_option(name) for name in self.fields}

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The experiment's options, followed by those of the command."""
        file, changes = ([_FILE], [_SET]) if self.whole else ([], [])
        return [*file, *self.field_options.values(), *changes, *super().get_params(ctx)]

    def invoke(self, ctx: click.Context) -> Any:
        """Call the command's function with `settings` instead of the single options; --set takes precedence."""
        from fedl2g.experiment import parse_override

        given = {name: ctx.params.pop(option.name) for name, option in self.field_options.items()}
        changes = dict(map(parse_override, ctx.params.pop("set", ())))
        overrides = {name: value for name, value in given.items() if value is not None} | changes
        ctx.params["settings"] = Settings(overrides, ctx.params.pop("file", None))
        return super().invoke(ctx)


_FILE = click.Argument(["file"], required=False, type=PATH, help="An experiment file (TOML); options override it.")
_SET = click.Option(
    ["-s", "--set"],
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=complete_with(changes),
    help="Any setting, e.g. method.server_lr=1; `fedl2g explain` lists them.",
)


def field_of(setting: str) -> FieldInfo:
    """The experiment's field for a setting such as `rounds` or `execution.engine`."""
    from fedl2g.experiment import Experiment

    *tables, name = setting.split(".")
    model: Any = Experiment
    for table in tables:
        model = model.model_fields[table].annotation
    field: FieldInfo = model.model_fields[name]
    return field


def field_option(setting: str) -> click.Option:
    """The option for one field, such as `--engine` for `execution.engine`; None if it is not given.

    Click only parses numbers; the experiment validates the values.
    """
    field = field_of(setting)
    flag = setting.rpartition(".")[2].replace("_", "-")
    names = [f"--{flag}", setting.replace(".", "_")]
    kinds = set(get_args(field.annotation) or [field.annotation]) - {NoneType}
    if kinds == {bool}:
        return click.Option([f"{names[0]}/--no-{flag}", names[1]], default=None, help=field.description)
    words = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    return click.Option(
        [*([SHORT[setting]] if setting in SHORT else []), *names],
        type=int if kinds == {int} else float if kinds == {float} else str,
        metavar="|".join(words) or None,
        shell_complete=COMPLETIONS.get(setting),
        help=field.description,
    )
