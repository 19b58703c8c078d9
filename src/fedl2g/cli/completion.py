"""`fedl2g completion`: the script with which a shell completes commands, options and names."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem, get_completion_class

from fedl2g.cli.output import print_line
from fedl2g.errors import SettingError

PROGRAM = "fedl2g"
VARIABLE = "_FEDL2G_COMPLETE"  # as click derives it from the program's name
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), help="The shell you use.")
@click.pass_context
def print_completion(context: click.Context, shell: str) -> None:
    """Print the script that completes `fedl2g` in your shell.

    \b
    bash:  fedl2g completion bash > ~/.fedl2g-completion; echo '. ~/.fedl2g-completion' >> ~/.bashrc
    zsh:   fedl2g completion zsh > ~/.fedl2g-completion; echo '. ~/.fedl2g-completion' >> ~/.zshrc
    fish:  fedl2g completion fish > ~/.config/fish/completions/fedl2g.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise SettingError(f"SHELL: {shell!r} is not supported by this version of click; update click")
    print_line(kind(context.find_root().command, {}, PROGRAM, VARIABLE).source())


def complete_with(names: Callable[[], Iterable[str]], *, several: bool = False) -> Complete:
    """A completion from names that are looked up on demand; `several` accepts a comma-separated list."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, start = incomplete.rpartition(",") if several else ("", "", incomplete)
        return [CompletionItem(f"{before}{comma}{name}") for name in names() if name.startswith(start)]

    return complete


def method_names() -> Iterable[str]:
    """The methods."""
    from fedl2g.methods.registry import methods

    return methods.names()


def dataset_names() -> Iterable[str]:
    """The named datasets."""
    from fedl2g.datasets.named import CATALOG

    return CATALOG


def model_names() -> Iterable[str]:
    """The model groups and architectures."""
    from fedl2g.models.catalog import ARCHITECTURES, GROUPS

    return [*GROUPS, *ARCHITECTURES]


def engine_names() -> Iterable[str]:
    """The engines."""
    from fedl2g.registry import engines

    return engines.names()


def setting_names() -> Iterable[str]:
    """The settings of an experiment."""
    from fedl2g.experiment.explanation import default_settings

    return default_settings()


def changes() -> Iterable[str]:
    """The settings of an experiment, as --set takes them."""
    return [f"{name}=" for name in setting_names()]


def paper_names() -> Iterable[str]:
    """The paper's experiments."""
    from fedl2g.paper.catalog import paper_experiments

    return paper_experiments()


def scale_names() -> Iterable[str]:
    """The scales of the paper's experiments."""
    from fedl2g.paper.catalog import scales

    return scales()


def tracker_names() -> Iterable[str]:
    """The trackers."""
    from fedl2g.runs.tracking import TRACKERS

    return TRACKERS
