"""Tables of the paper with our numbers, the paper's and the difference: as text, Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedl2g.paper.catalog import Cell, Column, PaperExperiment
from fedl2g.paper.study import Study
from fedl2g.round.record import chosen_on

if TYPE_CHECKING:
    from rich.table import Table

METHOD_NAMES = {
    "local": "Local",
    "lg-fedavg": "LG-FedAvg",
    "fedgh": "FedGH",
    "fml": "FML",
    "fedkd": "FedKD",
    "fedmrl": "FedMRL",
    "feddistill": "FedDistill",
    "fedproto": "FedProto",
    "fedl2g-l": "FedL2G-l",
    "fedl2g-f": "FedL2G-f",
}
COSTS = ("up_mb", "down_mb", "client_s", "server_s", "warmup_client_s")
MISSING = "missing"


@dataclass(frozen=True)
class Entry:
    """One cell of a table: our number over the finished seeds, the paper's, and a remark."""

    method: str
    column: Column
    ours: float | None
    std: float | None
    rounds: float | None
    seeds: tuple[int, ...]
    paper: dict[str, float] | None
    remark: str  # "", "missing", "diverged in round 7", "failed: ...", "not in the paper"
    best: bool = False
    paper_best: bool = False

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's: points of accuracy, or percent of the paper's number for costs."""
        if self.ours is None or self.paper is None:
            return None
        theirs = paper_number(self.paper)
        return 100 * (self.ours / theirs - 1) if self.column.metric in COSTS else self.ours - theirs

    def text_ours(self) -> str:
        """Our number as the table shows it."""
        if self.ours is None:
            return self.remark
        digits = 3 if self.column.metric in COSTS else 2
        text = f"{self.ours:.{digits}f}" + (f"±{self.std:.{digits}f}" if self.std is not None else "")
        if self.rounds is not None:
            text += f" ({self.rounds:.0f})"
        return text + (f" [{self.remark}]" if self.remark else "")

    def text_paper(self) -> str:
        """The paper's number as it prints it."""
        if self.paper is None:
            return "-"
        text = f"{paper_number(self.paper):g}"
        text += f"±{self.paper['std']:g}" if "std" in self.paper else ""
        return text + (f" ({self.paper['rounds']:.0f})" if "rounds" in self.paper else "")

    def text_difference(self) -> str:
        """The difference with its sign."""
        if self.difference is None:
            return "-"
        return f"{self.difference:+.1f} %" if self.column.metric in COSTS else f"{self.difference:+.2f}"


def paper_number(value: dict[str, float]) -> float:
    """The paper's number without its standard deviation."""
    return value["mean"]


@dataclass(frozen=True)
class Sheet:
    """A table in the paper's layout: methods as rows, columns with their headings."""

    experiment: PaperExperiment
    columns: tuple[Column, ...]
    methods: tuple[str, ...]
    entries: dict[tuple[str, str], Entry]

    def entry(self, method: str, column: Column) -> Entry | None:
        """A cell, or None if the layout has none."""
        return self.entries.get((method, column.name))

    def rows(self, show: Callable[[Entry], str]) -> Iterator[tuple[str, list[str]]]:
        """Each method's name in the paper and its cells as `show` prints them; "" where the layout has none."""
        for method in self.methods:
            entries = [self.entry(method, column) for column in self.columns]
            yield METHOD_NAMES.get(method, method), ["" if entry is None else show(entry) for entry in entries]


def sheets(experiment: PaperExperiment, study: Study, seeds: int | None = None) -> list[Sheet]:
    """The experiment's tables; columns that only some methods have (server learning rates) form a separate table."""
    failures = study.failures()
    planned: dict[tuple[str, str], list[Cell]] = {}
    for cell in study.cells(experiment, seeds):
        planned.setdefault((cell.method, cell.column), []).append(cell)
    blocks: dict[tuple[str, ...], list[Column]] = {}
    for column in experiment.columns:
        rows = experiment.methods if column.same_table else experiment.rows(column)
        blocks.setdefault(rows, []).append(column)
    result = []
    for methods, columns in blocks.items():
        entries: dict[tuple[str, str], Entry] = {}
        for column in columns:
            found = {
                m: _entry(experiment, m, column, planned.get((m, column.name), []), study, failures)
                for m in experiment.rows(column)
            }
            entries |= {(m, column.name): e for m, e in _mark_best(found).items()}
        result.append(Sheet(experiment, tuple(columns), methods, entries))
    return result


def _entry(
    experiment: PaperExperiment,
    method: str,
    column: Column,
    cells: Sequence[Cell],
    study: Study,
    failures: dict[str, str],
) -> Entry:
    paper = experiment.paper(method, column)
    if not cells:
        return Entry(method, column, None, None, None, (), paper, "not in the paper")
    values, rounds, seeds, remarks = [], [], [], []
    for cell in cells:
        result = study.result(cell)
        if result is None:
            if cell.folder in failures:
                remarks.append(f"failed: {failures[cell.folder]}")
            continue
        if result.status == "diverged":
            remarks.append(f"diverged in round {result.rounds + 1}")
            continue
        value = _value(column.metric, result, study, cell)
        if value is not None:
            values.append(value)
            rounds.append(result.best_round)
            seeds.append(cell.seed)
    remark = "; ".join(dict.fromkeys(remarks)) or (MISSING if not values else "")
    return Entry(
        method,
        column,
        statistics.fmean(values) if values else None,
        statistics.stdev(values) if len(values) > 1 else None,
        statistics.fmean(rounds) if rounds and experiment.rounds else None,
        tuple(seeds),
        paper,
        remark,
    )


def _value(metric: str, result: Any, study: Study, cell: Cell) -> float | None:
    if metric not in COSTS:
        return 100.0 * float(result.best_accuracy)
    from fedl2g.report.collect import read_runs
    from fedl2g.report.series import cost

    (run,) = read_runs([study.path(cell)])
    return cost(run)[metric]


def _mark_best(entries: dict[str, Entry]) -> dict[str, Entry]:
    """Mark the best entry of a column, ours and the paper's, unless it is the only one; lower is better for costs."""
    if len(entries) == 1:
        return entries
    pick = min if next(iter(entries.values())).column.metric in COSTS else max
    ours = pick((e.ours for e in entries.values() if e.ours is not None), default=None)
    theirs = pick((paper_number(e.paper) for e in entries.values() if e.paper is not None), default=None)
    return {
        m: replace(
            e,
            best=e.ours is not None and e.ours == ours,
            paper_best=e.paper is not None and paper_number(e.paper) == theirs,
        )
        for m, e in entries.items()
    }


def provenance(experiment: PaperExperiment, study: Study, tables: Sequence[Sheet]) -> list[str]:
    """The notes below a table: scale, seeds, commit, number of finished cells."""
    entries = [e for sheet in tables for e in sheet.entries.values() if e.remark != "not in the paper"]
    finished = [e for e in entries if e.ours is not None]
    seeds = sorted({seed for e in finished for seed in e.seeds})
    commits: set[str] = set()
    cells = study.cells(experiment, max(len(seeds), 1))
    chosen = chosen_on(*(result.selection for cell in cells if (result := study.result(cell)) is not None))
    for cell in cells:
        run = study.run_of(cell)
        if run is not None:
            commits.add(str(run.environment().get("commit") or f"fedl2g {run.environment().get('fedl2g')}"))
    lines = [f"Scale: {study.scale.name} ({study.scale.summary}). Accuracies: {chosen or 'none yet'}."]
    if study.scale.name != "full":
        lines.append(
            "NOT a reproduction of the paper's numbers: the setting differs, so the difference column compares two "
            "different experiments."
        )
    lines.append(
        f"{len(finished)} of {len(entries)} cells; seeds: {', '.join(map(str, seeds)) or 'none'}; "
        f"commit: {', '.join(sorted(commits)) or 'none'}."
    )
    if study.dataset_paths:
        files = {name: Path(path).name for name, path in sorted(study.dataset_paths.items())}
        lines.append("Images: " + ", ".join(f"{name} from {file}" for name, file in files.items()) + ".")
    if study.settings:
        lines.append(
            "Settings overridden in every cell: " + ", ".join(f"{k}={v}" for k, v in study.settings.items()) + "."
        )
    spread = sorted({len(e.seeds) for e in finished})
    if spread and spread[0] < 3:
        lines.append(f"Fewer than three seeds in some cells (at least {spread[0]}); ± is given from two seeds on.")
    return [*lines, *experiment.notes, *experiment.notes_on(experiment.methods)]


def heading(column: Column) -> str:
    """A column's heading in one line."""
    return ", ".join(part for part in column.heading if part)


def rich_tables(tables: Sequence[Sheet]) -> list[Table]:
    """Tables for a terminal; each cell has three lines: ours, the paper's and the difference."""
    from rich.markup import escape
    from rich.table import Table

    result = []
    for sheet in tables:
        caption = "each cell: ours, (the paper's), the difference; the best of a column is bold"
        table = Table(title=sheet.experiment.title, caption=caption, show_lines=True)
        table.add_column("method", overflow="fold")
        for column in sheet.columns:
            table.add_column(
                escape("\n".join(part for part in column.heading if part)), justify="right", overflow="fold"
            )
        for name, cells in sheet.rows(_rich_cell):
            table.add_row(name, *cells)
        result.append(table)
    return result


def _rich_cell(e: Entry) -> str:
    from rich.markup import escape

    ours = f"[bold green]{escape(e.text_ours())}[/]" if e.best else escape(e.text_ours())
    theirs = f"[bold]{e.text_paper()}[/]" if e.paper_best else e.text_paper()
    return f"{ours}\n({theirs})\n[dim]{e.text_difference()}[/]"


def _markdown_cell(e: Entry) -> str:
    ours = f"**{e.text_ours()}**" if e.best else e.text_ours()
    theirs = f"***{e.text_paper()}***" if e.paper_best else f"*{e.text_paper()}*"
    return f"{ours} / {theirs} / {e.text_difference()}".replace("|", "\\|")


def markdown(experiment: PaperExperiment, tables: Sequence[Sheet], lines: Sequence[str]) -> str:
    """The tables as Markdown: each cell ours / paper's / difference, the best of a column bold."""
    parts = [f"### {experiment.title}", "", *(f"- {line}" for line in lines), ""]
    parts += ["Each cell: **ours** / *paper's* / difference. The best of a column, ours and the paper's, is bold.", ""]
    for sheet in tables:
        parts.append("| method | " + " | ".join(heading(c) for c in sheet.columns) + " |")
        parts.append("|---|" + "---:|" * len(sheet.columns))
        parts += [f"| {name} | " + " | ".join(cells) + " |" for name, cells in sheet.rows(_markdown_cell)]
        parts.append("")
    return "\n".join(parts)


def as_csv(tables: Sequence[Sheet], study: Study) -> str:
    """One line per cell, with every number in its own field."""
    out = io.StringIO()
    writer = csv.writer(out)
    names = "experiment method column metric ours std best_round seeds paper paper_std paper_rounds difference remark"
    writer.writerow([*names.split(), "best", "scale"])
    for sheet in tables:
        for e in sheet.entries.values():
            paper = e.paper or {}
            mean = paper_number(paper) if paper else None
            numbers = [e.ours, e.std, e.rounds]
            writer.writerow(
                [sheet.experiment.name, e.method, e.column.name, e.column.metric]
                + ["" if v is None else f"{v:.6g}" for v in numbers]
                + [len(e.seeds)]
                + ["" if v is None else f"{v:g}" for v in (mean, paper.get("std"), paper.get("rounds"))]
                + ["" if e.difference is None else f"{e.difference:.4g}", e.remark, int(e.best), study.scale.name]
            )
    return out.getvalue()


def latex(experiment: PaperExperiment, tables: Sequence[Sheet], lines: Sequence[str]) -> str:
    """The tables in the paper's layout (package booktabs), ours with the paper's in grey brackets below."""
    parts = [f"% {line}" for line in lines]
    for sheet in tables:
        count = len(sheet.columns)
        parts += [r"\begin{table}[ht]", r"\centering", rf"\caption{{{_tex(experiment.title)}}}"]
        parts += [rf"\begin{{tabular}}{{l{'r' * count}}}", r"\toprule"]
        if any(len(c.heading) > 1 and c.heading[0] for c in sheet.columns):
            parts.append(_spanning(sheet.columns))
        parts.append("Method & " + " & ".join(_tex(c.heading[-1]) for c in sheet.columns) + r" \\")
        parts.append(r"\midrule")
        for (name, ours), (_, theirs) in zip(sheet.rows(_tex_ours), sheet.rows(_tex_paper), strict=True):
            parts.append(f"{_tex(name)} & " + " & ".join(ours) + r" \\")
            parts.append(" & " + " & ".join(theirs) + r" \\")
        parts += [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    return "\n".join(parts)


def _tex_ours(e: Entry) -> str:
    return rf"\textbf{{{_tex(e.text_ours())}}}" if e.best else _tex(e.text_ours())


def _tex_paper(e: Entry) -> str:
    return rf"{{\scriptsize paper {_tex(e.text_paper())}, {_tex(e.text_difference())}}}"


def _spanning(columns: Sequence[Column]) -> str:
    groups: list[tuple[str, int]] = []
    for column in columns:
        top = column.heading[0] if len(column.heading) > 1 else ""
        if groups and groups[-1][0] == top:
            groups[-1] = (top, groups[-1][1] + 1)
        else:
            groups.append((top, 1))
    return " & " + " & ".join(rf"\multicolumn{{{n}}}{{c}}{{{_tex(name)}}}" for name, n in groups) + r" \\"


def _tex(text: str) -> str:
    for plain, escaped in (("\\", r"\textbackslash "), ("_", r"\_"), ("%", r"\%"), ("&", r"\&"), ("#", r"\#")):
        text = text.replace(plain, escaped)
    return (
        text.replace("±", r"$\pm$").replace("{", r"\{").replace("}", r"\}")
        if "{" in text
        else text.replace("±", r"$\pm$")
    )
