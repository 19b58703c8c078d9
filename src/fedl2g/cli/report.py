"""`fedl2g report` and `fedl2g plot`: show runs as an HTML page or a figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedl2g.cli.options import PATH, quiet_option, runs_argument, trust_option
from fedl2g.cli.output import Display, print_line
from fedl2g.errors import SettingError

if TYPE_CHECKING:
    from fedl2g.report.collect import Run

FIGURES = ("curves", "loss-increase", "communication", "tsne", "bubbles")


@click.command("report")
@runs_argument
@click.option(
    "-o",
    "--out",
    "--output",
    "output",
    type=PATH,
    default=Path("report.html"),
    show_default=True,
    help="The HTML file to write.",
)
@click.option("--title", default="", help="The page's title.")
@click.option("--tsne/--no-tsne", default=True, show_default=True, help="Draw t-SNE from the last checkpoints.")
@trust_option
@quiet_option
def write_page(runs: tuple[Path, ...], output: Path, title: str, tsne: bool, trust: bool, quiet: bool) -> None:
    """Write a self-contained HTML page about runs: curves, costs, clients, guiding vectors, settings."""
    from fedl2g.report.page import write_report

    with Display(quiet) as display, display.working("reading runs") as tick:
        path = write_report(runs, output, title=title, tsne=tsne, progress=tick, trust=trust)
    print_line(str(path))


@click.command("plot")
@runs_argument
@click.option("-o", "--out", "--output", "output", type=PATH, help="PNG, PDF or SVG file to write.")
@click.option("--figure", type=click.Choice(FIGURES), default="curves", show_default=True, help="What to draw.")
@trust_option
def draw_figure(runs: tuple[Path, ...], output: Path | None, figure: str, trust: bool) -> None:
    """Draw a figure of runs for a paper: curves (seeds become a band), loss increase, costs, t-SNE, partition."""
    from fedl2g.report import figures
    from fedl2g.report.collect import group_runs, read_runs

    found = read_runs(runs, trust=trust)
    name = f"{figure}.png"
    target = output or (found[0].directory.figures / name if len(found) == 1 else Path(name))
    groups = group_runs(found)
    if figure == "curves":
        figures.draw_curves({group.label: [run.history for run in group.runs] for group in groups}, target)
    elif figure == "loss-increase":
        figures.draw_loss_increase(groups, target)
    elif figure == "communication":
        figures.draw_costs(groups, target)
    elif figure == "tsne":
        figures.draw_embeddings(groups, target)
    else:
        _draw_bubbles(found[0], target)
    print_line(str(target))


def _draw_bubbles(run: Run, target: Path) -> None:
    from fedl2g.report.bubbles import draw_bubbles
    from fedl2g.report.collect import cached_dataset

    dataset = cached_dataset(str(run.directory.about()["dataset_fingerprint"]))
    if dataset is None:
        raise SettingError(
            f"dataset: {run.settings['dataset']!r} is not in the local cache; load it with `fedl2g data show`"
        )
    title = f"{dataset.name}, {run.settings['partition']}"
    draw_bubbles(run.directory.partition(), dataset.labels, dataset.classes, target, title)
