"""`fedl2g paper run`: the cells of one experiment of the paper, with an estimate of how long they take."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedl2g.cli.options import PATH, json_option, quiet_option, track_option
from fedl2g.cli.output import Display, print_json, print_line
from fedl2g.errors import SettingError

if TYPE_CHECKING:
    from fedl2g.federation import Observer
    from fedl2g.paper.catalog import Cell, PaperExperiment
    from fedl2g.paper.study import Outcome, Study

ASK_ABOVE_SECONDS = 3600.0

name_argument = click.argument("name", help="An experiment of the paper; `fedl2g paper` lists them.")
scale_option = click.option("--scale", default="small", show_default=True, help="full, small or smoke.")
only_option = click.option(
    "--only", multiple=True, help="Only these methods or columns: fedl2g-f, dirichlet/cifar100, cifar10."
)
seeds_option = click.option("--seeds", type=click.IntRange(min=1), help="Seeds of each cell (3, or 1 at scale smoke).")
study_option = click.option(
    "--out", type=PATH, default=Path("runs/paper"), show_default=True, help="The folder of all the paper's runs."
)


@click.command("run")
@name_argument
@scale_option
@only_option
@seeds_option
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Cells at the same time, each in a process of its own.",
)
@click.option(
    "--dataset-path",
    "dataset_paths",
    multiple=True,
    metavar="NAME=FILE.npz",
    help="Use these images in place of a named dataset.",
)
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Lay a setting over every cell.")
@study_option
@track_option
@click.option("--yes", is_flag=True, help="Do not ask, however long it will take.")
@click.option("--dry-run", is_flag=True, help="Print the cells and the time estimate only.")
@json_option
@quiet_option
def run_paper_experiment(
    name: str,
    scale: str,
    only: tuple[str, ...],
    seeds: int | None,
    jobs: int,
    dataset_paths: tuple[str, ...],
    changes: tuple[str, ...],
    out: Path,
    track: str,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run all cells of an experiment that are not over yet; stop it any time and run it again."""
    from fedl2g.experiment import parse_override
    from fedl2g.paper.catalog import paper_experiment
    from fedl2g.paper.study import Study

    experiment = paper_experiment(name)
    study = Study.open(out, scale, _dataset_paths(dataset_paths), dict(map(parse_override, changes)))
    show_it = f"fedl2g paper show {name} --scale {scale} --out {out}"
    with Display(quiet or as_json) as display:
        if experiment.kind == "convergence":
            _run_convergence(study, display)
            return
        if experiment.kind == "partitions":
            study.save()
            print_line(f"nothing to train; draw the distributions with `{show_it}`")
            return
        cells = study.cells(experiment, seeds, only)
        from fedl2g.runs.tracking import trackers

        trackers(track, study.folder)  # a wrong name is said once and now, not of every cell
        work = _Work(study, cells, jobs, display)
        work.announce(experiment)
        if work.waiting and not dry_run:
            work.ask(yes)
            work.run(track)
    outcomes = work.outcomes()
    if as_json:
        print_json(outcomes)
    elif not dry_run:
        print_line(f"{outcomes['finished']} of {outcomes['cells']} cells are there; the table: {show_it}")
        for line in outcomes["failed"] + outcomes["diverged"]:
            print_line(f"  {line}")


class _Work:
    """The cells of one experiment: those that are over, those that wait, and how long these take at most."""

    def __init__(self, study: Study, cells: Iterable[Cell], jobs: int, display: Display) -> None:
        from fedl2g.runs.estimate import estimate_seconds

        self.study = study
        self.jobs = jobs
        self.display = display
        self.cells = {cell.folder: cell for cell in cells}
        self.waiting = {folder: cell for folder, cell in self.cells.items() if study.result(cell) is None}
        self.estimates: dict[str, float] = {}
        with display.console.status("measuring the step times of the architectures"):
            for folder, cell in self.waiting.items():
                try:
                    self.estimates[folder] = estimate_seconds(study.experiment(cell))
                except SettingError:  # the run will meet the same error, and note it
                    self.estimates[folder] = 0.0

    @property
    def seconds(self) -> float:
        """What the waiting cells take at most."""
        return sum(self.estimates.values()) / self.jobs

    def announce(self, experiment: PaperExperiment) -> None:
        """Say what there is to do and how long it can take."""
        from fedl2g.runs.estimate import duration

        self.display.say(
            f"{experiment.name}, scale {self.study.scale.name}: {len(self.cells)} runs, "
            f"{len(self.cells) - len(self.waiting)} are over, {len(self.waiting)} to go; "
            f"at most {duration(self.seconds)} on this machine with {self.jobs} at a time"
        )

    def ask(self, yes: bool) -> None:
        """Let the user say no to hours of work."""
        from fedl2g.runs.estimate import duration

        if self.seconds > ASK_ABOVE_SECONDS and not yes and on_a_terminal():
            click.confirm(f"This can take {duration(self.seconds)}. Start?", abort=True)

    def run(self, track: str) -> None:
        """Run the waiting cells, with a line for each that is over."""
        from fedl2g.paper.study import Pace, run_cells
        from fedl2g.runs.estimate import duration
        from fedl2g.runs.tracking import trackers

        if track:
            os.environ["FEDL2G_TRACK"] = track  # for cells in processes of their own
        numbers = {folder: f"[{number}/{len(self.waiting)}]" for number, folder in enumerate(self.waiting, 1)}

        def watch(cell: Cell) -> list[Observer]:
            progress = self.display.follow(f"{numbers[cell.folder]} {_title(cell)}")
            return [progress, *trackers(track, self.study.path(cell))]

        pace = Pace(self.estimates, self.jobs)
        outcomes = run_cells(self.study, self.cells.values(), jobs=self.jobs, watch=watch)
        for number, outcome in enumerate(outcomes, 1):
            left = pace.finish(outcome.cell)
            more = f"; about {duration(left)} left" if number < len(self.waiting) else ""
            self.display.say(f"[{number}/{len(self.waiting)}] {_title(outcome.cell)}: {_ending(outcome)}{more}")

    def outcomes(self) -> dict[str, Any]:
        """What became of all cells, as plain values."""
        results = {folder: self.study.result(cell) for folder, cell in self.cells.items()}
        failures: Mapping[str, str] = self.study.failures()
        return {
            "cells": len(self.cells),
            "estimate_seconds": self.seconds,
            "failed": [
                f"{_title(self.cells[folder])}: {failures[folder]}"
                for folder, result in results.items()
                if result is None and folder in failures
            ],
            "diverged": [
                f"{_title(self.cells[folder])}: diverged in round {result.rounds + 1}"
                for folder, result in results.items()
                if result is not None and result.status == "diverged"
            ],
            "finished": sum(result is not None for result in results.values()),
        }


def on_a_terminal() -> bool:
    """Whether there is somebody to ask."""
    return sys.stdin.isatty()


def _title(cell: Cell) -> str:
    return f"{cell.method} {cell.column} seed {cell.seed}"


def _ending(outcome: Outcome) -> str:
    if outcome.result is None:
        return f"could not be run ({outcome.reason})"
    if outcome.result.status == "diverged":
        return f"diverged in round {outcome.result.rounds + 1}"
    return f"{outcome.result.best_accuracy:.2%} in round {outcome.result.best_round}"


def _run_convergence(study: Study, display: Display) -> None:
    from fedl2g.paper.convergence import run_convergence

    study.save()
    with display.console.status("running the small problem"):
        path = run_convergence(study.folder / "convergence.json", smoke=study.scale.name == "smoke")
    print_line(str(path))


def _dataset_paths(given: Iterable[str]) -> dict[str, str]:
    """The files that stand for named datasets: NAME=FILE.npz."""
    from fedl2g.data.named import CATALOG
    from fedl2g.errors import nearest

    paths = {}
    for text in given:
        name, equals, file = text.partition("=")
        if not equals or name not in CATALOG:
            raise SettingError(
                f"--dataset-path: {text!r} does not name a dataset and its file; expected NAME=FILE.npz with NAME one "
                f"of {', '.join(CATALOG)}.{nearest(name, CATALOG)}"
            )
        path = Path(file).expanduser()
        if not path.exists():
            raise SettingError(f"--dataset-path: there is no file {file}; correct the path of {name}")
        paths[name] = str(path.resolve())
    return paths
