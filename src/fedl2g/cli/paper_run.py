"""`fedl2g paper run`: run the cells of one of the paper's experiments, with a time estimate."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedl2g.cli.completion import complete_with, paper_names, scale_names
from fedl2g.cli.options import PATH, jobs_option, json_option, quiet_option, track_option
from fedl2g.cli.output import Display, print_json, print_line, print_tracked
from fedl2g.errors import FedL2GError, SettingError, count
from fedl2g.files import quoted

if TYPE_CHECKING:
    from fedl2g.federation import Observer
    from fedl2g.paper.catalog import Cell, PaperExperiment
    from fedl2g.paper.study import Outcome, Study

ASK_ABOVE_SECONDS = 3600.0
_NAMED = 3  # cells that failed for one reason and are named

name_argument = click.argument(
    "name", shell_complete=complete_with(paper_names), help="An experiment of the paper; `fedl2g paper` lists them."
)
scale_option = click.option(
    "--scale",
    default="small",
    shell_complete=complete_with(scale_names),
    show_default=True,
    help="The size of the runs: full, small or smoke.",
)
only_option = click.option(
    "--only", multiple=True, help="Only these methods or columns, such as fedl2g-f, dirichlet/cifar100 or cifar10."
)
seeds_option = click.option(
    "--seeds", type=click.IntRange(min=1), help="The number of seeds of each cell (3, or 1 at scale smoke)."
)
study_option = click.option(
    "-o", "--out", type=PATH, default=Path("runs/paper"), show_default=True, help="The folder of all the paper's runs."
)


@click.command("run")
@name_argument
@scale_option
@only_option
@seeds_option
@jobs_option
@click.option(
    "--dataset-path",
    "dataset_paths",
    multiple=True,
    metavar="NAME=FILE.npz",
    help="Use this file instead of a named dataset.",
)
@click.option(
    "-s",
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a setting in every cell. With rounds=N, a warm-up that N leaves no room for takes half of N.",
)
@click.option(
    "--epsilon",
    "epsilons",
    type=click.FloatRange(min=0, min_open=True),
    multiple=True,
    help="For convergence: print the client rate and the rounds that theorem 2 asks for to be below this.",
)
@study_option
@track_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation of long runs.")
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
    epsilons: tuple[float, ...],
    out: Path,
    track: str,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run all unfinished cells of an experiment; can be interrupted and run again."""
    from fedl2g.experiment import parse_override
    from fedl2g.paper.catalog import paper_experiment
    from fedl2g.paper.study import Study

    experiment = paper_experiment(name)
    if epsilons and experiment.kind != "convergence":
        raise SettingError(f"--epsilon: has no meaning for {name!r}; expected with convergence only; leave it out")
    study = Study.open(out, scale, _dataset_paths(dataset_paths), dict(map(parse_override, changes)))
    show_it = f"fedl2g paper show {name} --scale {scale} --out {quoted(out)}"
    with Display(quiet or as_json) as display:
        if experiment.kind == "convergence":
            _run_convergence(study, epsilons, display, dry=dry_run, as_json=as_json)
            return
        if experiment.kind == "partitions":
            study.save()
            print_line(f"nothing to train; draw the distributions with `{show_it}`")
            return
        cells = study.cells(experiment, seeds, only)
        from fedl2g.runs.tracking import trackers

        trackers(track, study.folder)  # report a wrong name once, not for every cell
        work = _Work(study, cells, jobs, display)
        work.announce(experiment)
        if work.pending and not dry_run:
            work.ask(yes)
            study.write_plan(cells)
            work.run(track)
    outcomes = work.outcomes()
    if as_json:
        print_json(outcomes)
    elif dry_run:
        work.print_cells()
    else:
        print_line(f"{outcomes['finished']} of {outcomes['cells']} cells are finished; show them with `{show_it}`")
        for line in outcomes["diverged"]:
            print_line(f"  {line}")
        print_tracked(track, [study.path(cell) for cell in work.cells.values()])
    if not dry_run:
        work.check()


class _Work:
    """The cells of one experiment, finished and pending, with time estimates for the pending ones."""

    def __init__(self, study: Study, cells: Iterable[Cell], jobs: int, display: Display) -> None:
        from fedl2g.runs.estimate import estimate_seconds

        self.study = study
        self.jobs = jobs
        self.display = display
        self.cells = {cell.folder: cell for cell in cells}
        self.pending = {folder: cell for folder, cell in self.cells.items() if study.result(cell) is None}
        self.estimates: dict[str, float] = {}
        with display.console.status("measuring the step times of the architectures"):
            for folder, cell in self.pending.items():
                try:
                    self.estimates[folder] = estimate_seconds(study.experiment(cell))
                except SettingError:  # the run will raise and report the same error
                    self.estimates[folder] = 0.0

    @property
    def seconds(self) -> float:
        """An upper bound on the time of the pending cells."""
        return sum(self.estimates.values()) / self.jobs

    def announce(self, experiment: PaperExperiment) -> None:
        """Print the number of pending cells and the time estimate."""
        from fedl2g.runs.estimate import duration

        self.display.print(
            f"{experiment.name}, scale {self.study.scale.name}: {count(len(self.cells), 'run')}, "
            f"{len(self.cells) - len(self.pending)} finished, {len(self.pending)} to run; "
            f"at most {duration(self.seconds)} on this machine with {self.jobs} at a time"
        )

    def print_cells(self) -> None:
        """Print a line for each cell: finished, or its time estimate."""
        from fedl2g.runs.estimate import duration

        for folder, cell in self.cells.items():
            print_line(f"{_title(cell)}: {duration(self.estimates[folder]) if folder in self.pending else 'finished'}")

    def ask(self, yes: bool) -> None:
        """Ask for confirmation if the cells may take hours."""
        from fedl2g.runs.estimate import duration

        if self.seconds > ASK_ABOVE_SECONDS and not yes and on_a_terminal():
            click.confirm(f"This can take {duration(self.seconds)}. Start?", abort=True)

    def run(self, track: str) -> None:
        """Run the pending cells, and print a line for each one that ends."""
        from fedl2g.paper.study import Pace, run_cells
        from fedl2g.runs.estimate import duration
        from fedl2g.runs.tracking import trackers

        if track:
            os.environ["FEDL2G_TRACK"] = track  # for cells in subprocesses
        numbers = {folder: f"[{number}/{len(self.pending)}]" for number, folder in enumerate(self.pending, 1)}

        def watch(cell: Cell) -> list[Observer]:
            progress = self.display.follow(f"{numbers[cell.folder]} {_title(cell)}")
            return [progress, *trackers(track, self.study.path(cell))]

        pace = Pace(self.estimates, self.jobs)
        outcomes = run_cells(self.study, self.cells.values(), jobs=self.jobs, watch=watch)
        for number, outcome in enumerate(outcomes, 1):
            left = pace.finish(outcome.cell)
            more = f"; about {duration(left)} left" if number < len(self.pending) else ""
            self.display.print(f"[{number}/{len(self.pending)}] {_title(outcome.cell)}: {_ending(outcome)}{more}")

    def check(self) -> None:
        """Raise an error that names the failed cells, each reason once, if there are any."""
        cells: dict[str, list[str]] = {}
        for folder, reason in self.study.failures().items():
            if folder in self.cells and self.study.result(self.cells[folder]) is None:
                cells.setdefault(reason, []).append(_title(self.cells[folder]))
        if cells:
            failed = sum(map(len, cells.values()))
            details = "; ".join(f"{_few(titles)}: {reason}" for reason, titles in cells.items())
            raise FedL2GError(f"{failed} of {count(len(self.cells), 'cell')} failed: {details}")

    def outcomes(self) -> dict[str, Any]:
        """The outcomes of all cells as JSON values."""
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
    """Whether stdin is a terminal, so that the user can be asked."""
    return sys.stdin.isatty()


def _title(cell: Cell) -> str:
    return f"{cell.method} {cell.column} seed {cell.seed}"


def _few(titles: list[str]) -> str:
    """Some names and how many more there are."""
    more = len(titles) - _NAMED
    return ", ".join(titles[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _ending(outcome: Outcome) -> str:
    if outcome.result is None:
        return f"failed ({outcome.reason})"
    if outcome.result.status == "diverged":
        return f"diverged in round {outcome.result.rounds + 1}"
    return f"{outcome.result.best_accuracy:.2%} in round {outcome.result.best_round}"


def _run_convergence(study: Study, epsilons: tuple[float, ...], display: Display, *, dry: bool, as_json: bool) -> None:
    from fedl2g.files import write_text
    from fedl2g.paper.convergence import SERVER_RATES, problem_at, run_convergence
    from fedl2g.paper.theorem_report import convergence_csv, convergence_text, findings

    if dry:
        problem = problem_at(study.scale.name)
        rates = ", ".join(f"{rate:g}" for rate in SERVER_RATES)
        print_line(f"convergence: {count(len(SERVER_RATES), 'run')} of {problem.rounds} rounds, eta_s = {rates}")
        return
    study.save()
    path = study.folder / "convergence.json"
    with display.console.status("running the convergence experiment"):
        found = run_convergence(path, problem_at(study.scale.name), epsilons)
    write_text(path.with_suffix(".csv"), convergence_csv(found))
    if as_json:
        print_json(findings(found))
    else:
        print_line(f"{convergence_text(found)}\nwritten: {path}, {path.with_suffix('.csv')}")


def _dataset_paths(given: Iterable[str]) -> dict[str, str]:
    """Parse NAME=FILE.npz: files that replace named datasets."""
    from fedl2g.datasets.named import CATALOG
    from fedl2g.errors import choices

    paths = {}
    for text in given:
        name, equals, file = text.partition("=")
        if not equals or name not in CATALOG:
            raise SettingError(
                f"--dataset-path: {text!r} is not a dataset and its file; expected NAME=FILE.npz; "
                f"{choices(name, CATALOG)}"
            )
        path = Path(file).expanduser()
        if not path.exists():
            raise SettingError(f"--dataset-path: {file} does not exist; correct the path of {name}")
        paths[name] = str(path.resolve())
    return paths
