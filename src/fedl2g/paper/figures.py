"""The paper's figures, drawn from the cells of a study as PNG and PDF."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedl2g.errors import DataError, RunError
from fedl2g.files import reason_of
from fedl2g.paper.catalog import PaperExperiment
from fedl2g.paper.study import Study
from fedl2g.report import figures
from fedl2g.report.collect import Group, group_runs, read_runs

if TYPE_CHECKING:
    from fedl2g.paper.convergence import ConvergenceStudy


def draw_experiment(
    experiment: PaperExperiment, study: Study, stem: Path, seeds: int | None = None, *, trust: bool = False
) -> list[Path]:
    """Draw a figure of the paper in every format; returns the files."""
    if experiment.kind == "convergence":
        return _convergence(study, stem)
    if experiment.kind == "partitions":
        return _partitions(experiment, study, stem)
    paths = dict.fromkeys(study.path(cell) for cell in study.cells(experiment, seeds) if study.result(cell) is not None)
    if not paths:
        raise RunError(
            f"{experiment.name}: no cell is finished at scale {study.scale.name}; run `fedl2g paper run "
            f"{experiment.name} --scale {study.scale.name}` first"
        )
    groups = [Group(group.method, group.runs) for group in group_runs(read_runs(paths, trust=trust))]
    return [
        figures.write_figure(experiment.figure, groups, stem.with_name(stem.name + suffix))
        for suffix in figures.FORMATS
    ]


def _partitions(experiment: PaperExperiment, study: Study, stem: Path) -> list[Path]:
    from fedl2g.report.bubbles import draw_bubbles
    from fedl2g.setup import load_data, partition_of

    written = []
    for cell in study.cells(experiment, 1):
        settings = study.experiment(cell)
        try:
            dataset = load_data(settings)
        except DataError as error:
            raise DataError(
                f"{error}; to draw without a download, run `fedl2g paper run {experiment.name} --dataset-path`"
            ) from error
        partition = partition_of(settings, dataset)
        name = f"{stem.name}-{cell.column.replace('/', '-')}"
        title = f"{cell.settings['dataset']}, {settings.partition}, seed {settings.seed} (scale {study.scale.name})"
        for suffix in figures.FORMATS:
            written.append(stem.with_name(name + suffix))
            draw_bubbles(partition, dataset.labels, dataset.class_names, written[-1], title)
    return written


def convergence_of(study: Study) -> ConvergenceStudy:
    """The measurements of `fedl2g paper run convergence` in a study's folder."""
    from fedl2g.paper.convergence import read_convergence

    try:
        return read_convergence(study.folder / "convergence.json")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"convergence: no result ({reason_of(error)}); run `fedl2g paper run convergence --scale "
            f"{study.scale.name}` first"
        ) from error


def _convergence(study: Study, stem: Path) -> list[Path]:
    from fedl2g.paper.theorem_figure import draw_convergence

    found = convergence_of(study)
    return [draw_convergence(found, stem.with_name(stem.name + suffix)) for suffix in figures.FORMATS]
