"""The commands that show runs: `fedl2g report` and `fedl2g plot`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

Runs = Annotated[list[Path], typer.Argument(help="Run directories, or folders of runs.", metavar="RUN...")]


def report(
    runs: Runs,
    output: Annotated[Path, typer.Option("-o", "--output", help="The HTML file to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="The page's title.")] = "",
    tsne: Annotated[bool, typer.Option(help="Draw t-SNE from the last checkpoints.")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Write one HTML page about runs that opens offline: curves, costs, clients, guiding vectors, settings."""
    from rich.console import Console

    from fedl2g.progress import working
    from fedl2g.report.page import write_report

    if quiet:
        path = write_report(runs, output, title=title, tsne=tsne)
    else:
        with working(Console(stderr=True), "reading runs") as tick:
            path = write_report(runs, output, title=title, tsne=tsne, progress=tick)
    sys.stdout.write(f"{path}\n")
