"""`fedl2g report` and `fedl2g plot`: show runs as an HTML page or a figure."""

from __future__ import annotations

from pathlib import Path

import click

from fedl2g.cli.options import PATH, quiet_option, runs_argument, trust_option
from fedl2g.cli.output import Display, print_line

FIGURES = ("curves", "verdicts", "clients", "loss-increase", "communication", "tsne", "bubbles", "availability")


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
@click.option("-o", "--out", "--output", "output", type=PATH, help="The PNG, PDF or SVG file to write.")
@click.option("--figure", type=click.Choice(FIGURES), default="curves", show_default=True, help="What to draw.")
@trust_option
def draw_figure(runs: tuple[Path, ...], output: Path | None, figure: str, trust: bool) -> None:
    """Draw a figure of runs for a paper: the charts of the report as PNG, PDF or SVG."""
    from fedl2g.report.collect import group_runs, read_runs
    from fedl2g.report.figures import write_figure

    found = read_runs(runs, trust=trust)
    name = f"{figure}.png"
    target = output or (found[0].directory.figure(name) if len(found) == 1 else Path(name))
    print_line(str(write_figure(figure, group_runs(found), target)))
