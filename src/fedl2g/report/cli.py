"""The commands that show runs: `fedl2g report` and `fedl2g plot`."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedl2g.report.collect import Run

Runs = Annotated[list[Path], typer.Argument(help="Run directories, or folders of runs.", metavar="RUN...")]
Trust = Annotated[bool, typer.Option("--trust", help="Import the code (models, data, a method) that the file names.")]


def report(
    runs: Runs,
    output: Annotated[Path, typer.Option("-o", "--output", help="The HTML file to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="The page's title.")] = "",
    tsne: Annotated[bool, typer.Option(help="Draw t-SNE from the last checkpoints.")] = True,
    trust: Trust = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Write one HTML page about runs that opens offline: curves, costs, clients, guiding vectors, settings."""
    from fedl2g.report.page import write_report
    from fedl2g.runs.progress import progress_console, working

    if quiet:
        path = write_report(runs, output, title=title, tsne=tsne, trust=trust)
    else:
        with working(progress_console(), "reading runs") as tick:
            path = write_report(runs, output, title=title, tsne=tsne, trust=trust, progress=tick)
    sys.stdout.write(f"{path}\n")


class Figure(StrEnum):
    """What `fedl2g plot` can draw."""

    CURVES = "curves"
    LOSS_INCREASE = "loss-increase"
    COMMUNICATION = "communication"
    TSNE = "tsne"
    BUBBLES = "bubbles"


def plot(
    runs: Runs,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="PNG, PDF or SVG file to write.")] = None,
    figure: Annotated[Figure, typer.Option(help="What to draw.")] = Figure.CURVES,
    trust: Trust = False,
) -> None:
    """Draw a figure of runs for a paper: curves (seeds become a band), loss increase, costs, t-SNE, who holds what."""
    from fedl2g.report import figures
    from fedl2g.report.collect import group_runs, read_runs

    found = read_runs(runs, trust=trust)
    name = f"{figure.value}.png"
    target = output or (found[0].directory.figures / name if len(found) == 1 else Path(name))
    groups = group_runs(found)
    if figure is Figure.CURVES:
        figures.draw_curves({group.label: [run.history for run in group.runs] for group in groups}, target)
    elif figure is Figure.LOSS_INCREASE:
        figures.draw_loss_increase(groups, target)
    elif figure is Figure.COMMUNICATION:
        figures.draw_costs(groups, target)
    elif figure is Figure.TSNE:
        figures.draw_embeddings(groups, target)
    else:
        _draw_bubbles(found[0], target)
    sys.stdout.write(f"{target}\n")


def _draw_bubbles(run: Run, target: Path) -> None:
    from fedl2g.errors import SettingError
    from fedl2g.report.bubbles import draw_bubbles
    from fedl2g.report.collect import cached_dataset

    dataset = cached_dataset(str(run.directory.about()["dataset_fingerprint"]))
    if dataset is None:
        raise SettingError(
            f"the dataset {run.settings['dataset']!r} is not in this machine's cache; load it with `fedl2g data show`"
        )
    title = f"{dataset.name}, {run.settings['partition']}"
    draw_bubbles(run.directory.partition(), dataset.labels, dataset.classes, target, title)
