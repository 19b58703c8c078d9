"""`fedl2g paper`: list, run and show the paper's experiments."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedl2g.errors import SettingError

if TYPE_CHECKING:
    from rich.console import Console

    from fedl2g.federation import Observer
    from fedl2g.paper.catalog import Cell, PaperExperiment
    from fedl2g.paper.study import Study

paper_app = typer.Typer(help="The paper's tables and figures: list, run, show ours beside theirs.")

Name = Annotated[str, typer.Argument(help="An experiment of the paper; `fedl2g paper` lists them.")]
ScaleName = Annotated[str, typer.Option("--scale", help="full, small or smoke.")]
Folder = Annotated[Path, typer.Option("--out", help="The folder of all the paper's runs.")]
Only = Annotated[
    list[str] | None, typer.Option(help="Only these methods or columns: fedl2g-f, dirichlet/cifar100, cifar10.")
]
Seeds = Annotated[int | None, typer.Option(help="Seeds of each cell (3, or 1 at scale smoke).", min=1)]

ASK_ABOVE_SECONDS = 3600.0


@paper_app.callback(invoke_without_command=True)
def list_experiments(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, and nothing else.")] = False,
) -> None:
    """The paper's tables and figures: list, run, show ours beside theirs."""
    if context.invoked_subcommand is not None:
        return
    from fedl2g.paper.catalog import paper_experiments

    rows = [
        {"name": e.name, "kind": e.kind, "title": e.title, "cells": len(e.cells())}
        for e in paper_experiments().values()
    ]
    if as_json:
        _print(json.dumps(rows))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("experiment", "kind", "what it shows", "cells")
    for row in rows:
        table.add_row(*(str(row[name]) for name in ("name", "kind", "title", "cells")))
    Console().print(table)
    _print("Run one: fedl2g paper run NAME --scale smoke|small|full    Show it: fedl2g paper show NAME --scale ...")


@paper_app.command("run")
def run_experiment(
    name: Name,
    scale: ScaleName = "small",
    only: Only = None,
    seeds: Seeds = None,
    jobs: Annotated[int, typer.Option(help="Cells at the same time, each in a process of its own.", min=1)] = 1,
    dataset_path: Annotated[
        list[str] | None, typer.Option(metavar="NAME=FILE.npz", help="Use these images in place of a named dataset.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Lay a setting over every cell.")
    ] = None,
    out: Folder = Path("runs/paper"),
    track: Annotated[
        str | None,
        typer.Option(envvar="FEDL2G_TRACK", show_envvar=False, help="Also write to trackers: tensorboard,mlflow."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask, however long it will take.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the cells and the time estimate only.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Run all cells of an experiment that are not over yet; stop it any time and run it again."""
    from fedl2g.experiment import parse_override
    from fedl2g.paper.catalog import paper_experiment
    from fedl2g.paper.study import Study

    experiment = paper_experiment(name)
    study = Study.open(out, scale, _dataset_paths(dataset_path), dict(map(parse_override, settings or [])))
    if experiment.kind == "convergence":
        _run_convergence(study, quiet)
        return
    if experiment.kind == "partitions":
        study.save()
        _print(f"nothing to train; draw the distributions with `fedl2g paper show {name} --scale {scale} --out {out}`")
        return
    cells = study.cells(experiment, seeds, only or ())
    if track:
        from fedl2g.runs.tracking import trackers

        trackers(track, study.folder)  # a wrong name is said once and now, not of every cell
        os.environ["FEDL2G_TRACK"] = track  # for cells in processes of their own
    outcomes = _run_cells(study, experiment, cells, jobs, track=track, yes=yes, dry_run=dry_run, quiet=quiet or as_json)
    if as_json:
        _print(json.dumps(outcomes))
    elif not dry_run:
        again = f"fedl2g paper show {name} --scale {scale} --out {out}"
        _print(f"{outcomes['finished']} of {outcomes['cells']} cells are there; the table: {again}")
        for line in outcomes["failed"] + outcomes["diverged"]:
            _print(f"  {line}")


def _run_cells(
    study: Study,
    experiment: PaperExperiment,
    cells: list[Cell],
    jobs: int,
    *,
    track: str | None,
    yes: bool,
    dry_run: bool,
    quiet: bool,
) -> dict[str, Any]:
    from fedl2g.paper.study import Pace, run_cells
    from fedl2g.runs.estimate import duration, estimate_seconds
    from fedl2g.runs.progress import progress_console

    console = progress_console(quiet)
    distinct = {cell.folder: cell for cell in cells}
    waiting = {folder: cell for folder, cell in distinct.items() if study.result(cell) is None}
    estimates: dict[str, float] = {}
    refused: list[str] = []
    with console.status("measuring the step times of the architectures"):
        for folder, cell in waiting.items():
            try:
                estimates[folder] = estimate_seconds(study.experiment(cell))
            except SettingError as error:  # the run will meet the same error, and note it
                estimates[folder] = 0.0
                refused.append(str(error))
    total = sum(estimates.values()) / jobs
    console.print(
        f"{experiment.name}, scale {study.scale.name}: {len(distinct)} runs, {len(distinct) - len(waiting)} are over, "
        f"{len(waiting)} to go; at most {duration(total)} on this machine with {jobs} at a time",
        highlight=False,
    )
    summary: dict[str, Any] = {"cells": len(distinct), "estimate_seconds": total, "failed": [], "diverged": []}
    if not dry_run and waiting:
        if total > ASK_ABOVE_SECONDS and not yes and _on_a_terminal():
            typer.confirm(f"This can take {duration(total)}. Start?", abort=True)
        pace = Pace(estimates, jobs)
        titles = {cell.folder: f"[{n}/{len(waiting)}] {_title(cell)}" for n, cell in enumerate(waiting.values(), 1)}
        with _watching(study, titles, None if quiet else console, track) as watch:
            for number, outcome in enumerate(run_cells(study, distinct.values(), jobs=jobs, watch=watch), 1):
                left = pace.finish(outcome.cell)
                more = f"; about {duration(left)} left" if number < len(waiting) else ""
                line = f"[{number}/{len(waiting)}] {_title(outcome.cell)}: {_outcome(outcome)}{more}"
                console.print(line, highlight=False, markup=False)
    failures = study.failures()
    for cell in distinct.values():
        result = study.result(cell)
        if result is not None and result.status == "diverged":
            summary["diverged"].append(f"{_title(cell)}: diverged in round {result.rounds + 1}")
        elif result is None and cell.folder in failures:
            summary["failed"].append(f"{_title(cell)}: {failures[cell.folder]}")
    summary["finished"] = sum(study.result(cell) is not None for cell in distinct.values())
    return summary


def _on_a_terminal() -> bool:
    return sys.stdin.isatty()


def _title(cell: Cell) -> str:
    return f"{cell.method} {cell.column} seed {cell.seed}"


def _outcome(outcome: Any) -> str:
    if outcome.result is None:
        return f"could not be run ({outcome.reason})"
    if outcome.result.status == "diverged":
        return f"diverged in round {outcome.result.rounds + 1}"
    return f"{outcome.result.best_accuracy:.2%} in round {outcome.result.best_round}"


@contextlib.contextmanager
def _watching(
    study: Study, titles: dict[str, str], console: Console | None, track: str | None
) -> Iterator[Callable[[Cell], list[Observer]]]:
    """What follows a cell: its progress, unless quiet, and the trackers."""
    from fedl2g.runs.progress import RoundProgress
    from fedl2g.runs.tracking import trackers

    displays: list[RoundProgress] = []

    def watch(cell: Cell) -> list[Observer]:
        observers = trackers(track or "", study.path(cell))
        if console is not None:
            displays.append(RoundProgress(console, titles[cell.folder]))
            observers.append(displays[-1])  # type: ignore[arg-type]
        return observers

    try:
        yield watch
    finally:
        for display in displays:
            display.close()


@paper_app.command("show")
def show_experiment(
    name: Name,
    scale: ScaleName = "small",
    only: Only = None,
    seeds: Seeds = None,
    out: Folder = Path("runs/paper"),
    to: Annotated[Path | None, typer.Option(help="Where to write; OUT/SCALE/NAME.* when absent.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, and nothing else.")] = False,
) -> None:
    """Show an experiment as the paper does, ours beside theirs; writes Markdown, CSV and LaTeX, or the figure."""
    from fedl2g.paper.catalog import narrow, paper_experiment
    from fedl2g.paper.study import Study

    experiment = narrow(paper_experiment(name), only or ())
    study = Study.open(out, scale)
    stem = (to or study.folder) / experiment.name
    stem.parent.mkdir(parents=True, exist_ok=True)
    if experiment.kind == "table":
        _show_table(experiment, study, seeds, stem, as_json)
        return
    from fedl2g.paper.figures import draw_experiment

    written = draw_experiment(experiment, study, stem, seeds)
    _print(json.dumps({"files": list(map(str, written))}) if as_json else "\n".join(map(str, written)))


def _show_table(experiment: PaperExperiment, study: Study, seeds: int | None, stem: Path, as_json: bool) -> None:
    from fedl2g.paper import tables
    from fedl2g.runs.directory import write_atomically

    found = tables.sheets(experiment, study, seeds)
    lines = tables.provenance(experiment, study, found)
    texts = {
        ".md": tables.markdown(experiment, found, lines),
        ".csv": tables.as_csv(found, study),
        ".tex": tables.latex(experiment, found, lines),
    }
    files = []
    for suffix, text in texts.items():
        files.append(stem.with_name(stem.name + suffix))
        write_atomically(files[-1], text)
    if as_json:
        cells = [
            {
                "method": e.method,
                "column": e.column.name,
                "ours": e.ours,
                "std": e.std,
                "seeds": list(e.seeds),
                "paper": e.paper,
                "difference": e.difference,
                "remark": e.remark,
                "best": e.best,
            }
            for sheet in found
            for e in sheet.entries.values()
        ]
        _print(json.dumps({"cells": cells, "notes": lines, "files": list(map(str, files))}))
        return
    from rich.console import Console

    console = Console()
    for table in tables.rich_tables(found):
        console.print(table)
    for line in lines:
        console.print(f"- {line}", highlight=False, markup=False)
    _print("written: " + ", ".join(map(str, files)))


def _run_convergence(study: Study, quiet: bool) -> None:
    from fedl2g.paper.convergence import run_convergence
    from fedl2g.runs.progress import progress_console

    study.save()
    with progress_console(quiet).status("running the small problem"):
        path = run_convergence(study.folder / "convergence.json", smoke=study.scale.name == "smoke")
    _print(str(path))


def _dataset_paths(given: list[str] | None) -> dict[str, str]:
    from fedl2g.data.named import CATALOGUE
    from fedl2g.errors import nearest

    result = {}
    for text in given or []:
        name, equals, path = text.partition("=")
        if not equals or name not in CATALOGUE:
            raise SettingError(
                f"--dataset-path {text!r} is not of the form NAME=FILE.npz with NAME one of "
                f"{', '.join(CATALOGUE)}.{nearest(name, CATALOGUE)}"
            )
        if not Path(path).expanduser().exists():
            raise SettingError(f"--dataset-path {text}: there is no file {path}")
        result[name] = str(Path(path).expanduser().resolve())
    return result


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
