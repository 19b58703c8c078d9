"""`fedl2g paper`: list the paper's experiments and show our results beside the paper's; `paper_run` runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedl2g.cli.groups import OrderedGroup
from fedl2g.cli.options import PATH, json_option, trust_option
from fedl2g.cli.output import print_json, print_line, print_tables
from fedl2g.cli.paper_run import (
    name_argument,
    only_option,
    run_paper_experiment,
    scale_option,
    seeds_option,
    study_option,
)
from fedl2g.errors import SettingError

if TYPE_CHECKING:
    from fedl2g.paper.catalog import PaperExperiment
    from fedl2g.paper.study import Study
    from fedl2g.paper.tables import Sheet


@click.group("paper", cls=OrderedGroup, invoke_without_command=True)
@json_option
@click.pass_context
def paper_group(context: click.Context, as_json: bool) -> None:
    """The paper's tables and figures: list, run, compare with ours."""
    if context.invoked_subcommand is not None:
        return
    from fedl2g.paper.catalog import paper_experiments

    rows = [
        {"name": e.name, "kind": e.kind, "title": e.title, "cells": len(e.cells())}
        for e in paper_experiments().values()
    ]
    if as_json:
        print_json(rows)
        return
    from fedl2g.report.listings import paper_table

    print_tables(paper_table(rows))
    print_line("Run one: fedl2g paper run NAME --scale smoke|small|full    Show it: fedl2g paper show NAME --scale ...")


paper_group.add_command(run_paper_experiment)


@paper_group.command("show")
@name_argument
@scale_option
@only_option
@seeds_option
@study_option
@trust_option
@click.option("--to", type=PATH, help="Folder to write to; OUT/SCALE if omitted.")
@json_option
def show_paper_experiment(
    name: str,
    scale: str,
    only: tuple[str, ...],
    seeds: int | None,
    out: Path,
    trust: bool,
    to: Path | None,
    as_json: bool,
) -> None:
    """Show an experiment as in the paper, with our results; writes Markdown, CSV and LaTeX, or the figure."""
    from fedl2g.paper.catalog import narrow, paper_experiment
    from fedl2g.paper.study import Study

    experiment = narrow(paper_experiment(name), only)
    study = Study.open(out, scale, trust=trust)
    stem = (to or study.folder) / experiment.name
    if experiment.kind == "table":
        _show_table(experiment, study, seeds, stem, as_json)
        return
    from fedl2g.paper.figures import draw_experiment

    written = list(map(str, draw_experiment(experiment, study, stem, seeds, trust=trust)))
    if experiment.kind == "convergence":
        written += _write_convergence(study, stem, as_json)
    if as_json:
        print_json({"files": written})
    else:
        print_line("\n".join(written))


def _show_table(experiment: PaperExperiment, study: Study, seeds: int | None, stem: Path, as_json: bool) -> None:
    from fedl2g.paper import tables

    sheets = tables.sheets(experiment, study, seeds)
    notes = tables.provenance(experiment, study, sheets)
    texts = {
        ".md": tables.markdown(experiment, sheets, notes),
        ".csv": tables.as_csv(sheets, study),
        ".tex": tables.latex(experiment, sheets, notes),
    }
    files = _write_texts(stem, texts)
    if as_json:
        print_json({"cells": _cells(sheets), "notes": notes, "files": files})
        return
    print_tables(*tables.rich_tables(sheets))
    for note in notes:
        print_line(f"- {note}")
    print_line("written: " + ", ".join(files))


def _write_convergence(study: Study, stem: Path, as_json: bool) -> list[str]:
    """Write and print the measured theorems."""
    from fedl2g.paper.figures import convergence_of
    from fedl2g.paper.theorem_report import convergence_csv, convergence_text

    found = convergence_of(study)
    text = convergence_text(found)
    if not as_json:
        print_line(text)
    return _write_texts(stem, {".md": text, ".csv": convergence_csv(found)})


def _write_texts(stem: Path, texts: Mapping[str, str]) -> list[str]:
    """Write a text for each suffix beside the others; returns the files."""
    from fedl2g.files import reason_of, write_text

    files = {stem.with_name(stem.name + suffix): text for suffix, text in texts.items()}
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            write_text(file, text)
    except OSError as error:
        raise SettingError(
            f"--to: {stem.parent} cannot be written ({reason_of(error)}); choose another folder"
        ) from error
    return list(map(str, files))


def _cells(sheets: Sequence[Sheet]) -> list[dict[str, object]]:
    """The cells of the tables as plain values."""
    return [
        {
            "method": entry.method,
            "column": entry.column.name,
            "ours": entry.ours,
            "std": entry.std,
            "seeds": list(entry.seeds),
            "paper": entry.paper,
            "difference": entry.difference,
            "remark": entry.remark,
            "best": entry.best,
        }
        for sheet in sheets
        for entry in sheet.entries.values()
    ]
