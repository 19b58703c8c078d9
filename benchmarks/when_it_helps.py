"""When does federation help? Every regime x method x seed, against local training on the same clients.

    python benchmarks/when_it_helps.py --data DIR            # run what is missing; DIR holds the packed image sets
    python benchmarks/when_it_helps.py --only digits         # the embedded digits alone: needs no DIR
    python benchmarks/when_it_helps.py --table               # the Markdown tables of what is there
    python benchmarks/when_it_helps.py --into docs/when-it-helps.md   # put these tables into the page
    python benchmarks/when_it_helps.py --size full ...       # more rounds, more images, every method with every seed

Each run is a run of the package in this process (inline engine, one thread). Its result is one line of the regime's
file in benchmarks/results/when-it-helps/SIZE/; finished runs are not repeated, so the study can be interrupted at any
time. It goes through the passes of its size one after the other, and through each pass seed by seed: the table is
complete after each seed. With `--jobs 2` two runs go on at the same time.

Every method trains for the same number of rounds; FedL2G's warm-up rounds, in which no client trains, come on top. The
score is the accuracy after the last round: nothing is chosen on test data.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedl2g.experiment import Experiment
from fedl2g.files import write_text
from fedl2g.runs.verdicts import Count, Difference, compare, points
from fedl2g.setup import Setup, prepare

RESULTS = Path(__file__).parent / "results" / "when-it-helps"
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"  # what is between them in a page is replaced

RECOMMENDED: dict[str, Any] = {"quiz": "rotating", "guide_weight": 0.1, "server_step": "rms"}
ZEROS = {"guide_init": "zeros"}  # recommended in logit space only
ADAPTIVE = {"guide_weight": "adaptive"}
OPTIONS: dict[str, dict[str, Any]] = {
    f"fedl2g-{space}, {label}": {"name": f"fedl2g-{space}", **options}
    for space in ("l", "f")
    for label, options in {
        "frozen guide": {"server_lr": 0.0},
        **{f"{name} {value}": {name: value} for name, value in RECOMMENDED.items()},
        "guide_weight adaptive": ADAPTIVE,
        "recommended but guide_weight adaptive": RECOMMENDED | ADAPTIVE | (ZEROS if space == "l" else {}),
    }.items()
} | {
    "fedl2g-l, guide_init zeros": {"name": "fedl2g-l", **ZEROS},
    "fedl2g-l, recommended but guide_init normal": {"name": "fedl2g-l", **RECOMMENDED},
}
# FedL2G with a weight of 0 is local training, and its warm-up rounds make it draw other batches.
CONTROL = "local, other batches"
METHODS: dict[str, dict[str, Any]] = {
    "local": {"name": "local"},
    CONTROL: {"name": "fedl2g-f", "quiz": "rotating", "guide_weight": 0.0},
    "feddistill": {"name": "feddistill"},
    "fedproto": {"name": "fedproto"},
    "fedmrl": {"name": "fedmrl"},
    "fedl2g-l": {"name": "fedl2g-l"},
    "fedl2g-l, recommended": {"name": "fedl2g-l", **RECOMMENDED, **ZEROS},
    "fedl2g-f": {"name": "fedl2g-f"},
    "fedl2g-f, recommended": {"name": "fedl2g-f", **RECOMMENDED},
}
MAIN, EVERY = tuple(METHODS), (*METHODS, *OPTIONS)
CORE = tuple(method for method in MAIN if method not in ("fedproto", "fedmrl"))  # what the small study runs first
METHODS |= OPTIONS


@dataclass(frozen=True)
class Regime:
    """One setting: its data and its clients."""

    name: str
    kind: str  # digits, images or paper: what the passes of a size choose from
    settings: dict[str, Any]
    packed: str = ""  # the packed image set in --data; "" for a dataset of the package
    splits: tuple[str, ...] = ("train",)


def _digits(name: str, clients: int, partition: str) -> Regime:
    settings = {"dataset": "digits", "image_size": 16, "partition": partition, "models": "small", "clients": clients}
    return Regime(name, "digits", settings)


def _images(name: str, packed: str, partition: str, *splits: str) -> Regime:
    settings = {"image_size": 32, "partition": partition, "models": "small", "clients": 20}
    return Regime(name, "images", settings, packed, splits or ("train",))


def _paper(name: str, packed: str, partition: str, *splits: str) -> Regime:
    settings = {"image_size": 32, "partition": partition, "models": "htfe2", "clients": 12}
    return Regime(f"{name}, 12 clients, HtFE_2", "paper", settings, packed, splits or ("train",))


PACS, FLOWERS = ("photo", "art_painting", "cartoon", "sketch"), ("train", "val", "test")
REGIMES = (
    _digits("digits, 20 clients, Dirichlet 0.1", 20, "dirichlet:0.1"),
    _digits("digits, 40 clients, Dirichlet 0.5", 40, "dirichlet:0.5"),
    _digits("digits, 20 clients, IID", 20, "iid"),
    _images("Cifar10, 20 clients, Dirichlet 0.1", "cifar10", "dirichlet:0.1"),
    _images("Cifar100, 20 clients, Dirichlet 0.1", "cifar100", "dirichlet:0.1"),
    _images("PACS, 20 clients by domain", "pacs", "domain", *PACS),
    _images("Flowers102, 20 clients, Dirichlet 0.1", "flowers102", "dirichlet:0.1", *FLOWERS),
    _paper("Cifar10", "cifar10", "dirichlet:0.1"),
    _paper("Cifar100", "cifar100", "dirichlet:0.1"),
    _paper("PACS", "pacs", "domain", *PACS),
    _paper("Flowers102", "flowers102", "dirichlet:0.1", *FLOWERS),
)


@dataclass(frozen=True)
class Length:
    """How much one kind of regime trains, and on how many images."""

    rounds: int
    warmup: int
    samples: int | None = None


@dataclass(frozen=True)
class Pass:
    """A part of the study: the regimes of one kind with these methods and seeds 0, 1, ..."""

    kind: str
    methods: tuple[str, ...]
    seeds: int


@dataclass(frozen=True)
class Size:
    """How large the study is."""

    lengths: dict[str, Length]
    passes: tuple[Pass, ...]


SIZES = {
    "small": Size(
        {"digits": Length(15, 5), "images": Length(8, 4, 4000), "paper": Length(4, 2, 4000)},
        (
            Pass("digits", CORE, 2),
            Pass("images", CORE, 1),
            Pass("digits", CORE, 5),
            Pass("images", CORE, 3),
            Pass("digits", EVERY, 1),
            Pass("images", MAIN, 3),
            Pass("paper", CORE, 3),
            Pass("digits", EVERY, 5),
            Pass("images", EVERY, 3),
            Pass("paper", MAIN, 3),
        ),
    ),
    "full": Size(
        {"digits": Length(100, 50), "images": Length(100, 50, 8000), "paper": Length(100, 50, 8000)},
        (Pass("digits", EVERY, 5), Pass("images", EVERY, 3), Pass("paper", EVERY, 3)),
    ),
}


class Study:
    """One size of the study and its results."""

    def __init__(self, size: str, results: Path, only: str) -> None:
        self.size = SIZES[size]
        self.folder = results / size
        self.regimes = [regime for regime in REGIMES if only.lower() in regime.name.lower()]

    def todo(self) -> Iterator[tuple[Regime, str, int]]:
        """What has not been run yet, in order."""
        planned = {regime.name: set(self.read(regime)) for regime in self.regimes}
        for one in self.size.passes:
            for seed in range(one.seeds):
                for regime in self.regimes:
                    for method in one.methods if regime.kind == one.kind else ():
                        if f"{method} | {seed}" not in planned[regime.name]:
                            planned[regime.name].add(f"{method} | {seed}")
                            yield regime, method, seed

    def experiment(self, regime: Regime, method: str, seed: int, dataset: str) -> Experiment:
        """The experiment of one run."""
        options, length = METHODS[method], self.size.lengths[regime.kind]
        rounds = length.rounds
        if options["name"].startswith("fedl2g"):
            options, rounds = {**options, "warmup_rounds": length.warmup}, rounds + length.warmup
        settings = {**regime.settings, "dataset": dataset, "rounds": rounds, "patience": 0, "evaluate_every": rounds}
        if length.samples is not None:
            settings["samples"] = length.samples
        return Experiment(method=options, seed=seed, **settings)

    def file(self, regime: Regime) -> Path:
        """The results of a regime."""
        kept = "".join(c for c in regime.name.lower().replace(" ", "-") if c.isalnum() or c in "-._")
        return self.folder / f"{kept}.json"

    def read(self, regime: Regime) -> dict[str, Any]:
        """The finished runs of a regime by "method | seed"."""
        path = self.file(regime)
        runs: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else {}
        return runs

    def store(self, regime: Regime, key: str, entry: dict[str, Any]) -> None:
        """Add one run to the file of its regime, one line per run."""
        length = self.size.lengths[regime.kind]
        settings = {**regime.settings, "rounds": length.rounds, "warmup_rounds": length.warmup}
        if length.samples is not None:
            settings["samples"] = length.samples
        runs = {**self.read(regime), key: entry}
        lines = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in runs.items())
        head = f' "regime": {json.dumps(regime.name)},\n "settings": {json.dumps(settings)}'
        write_text(self.file(regime), f'{{\n{head},\n "runs": {{\n{lines}\n }}\n}}\n')

    def differences(self, regime: Regime) -> dict[str, Difference]:
        """Every method against local training."""
        counts: dict[str, dict[int, dict[int, Count]]] = {}
        for key, entry in self.read(regime).items():
            method, seed = key.split(" | ")
            pairs = zip(entry["correct"], entry["test_samples"], strict=True)
            counts.setdefault(method, {})[int(seed)] = {i: Count(c, n) for i, (c, n) in enumerate(pairs)}
        ordered = {method: counts[method] for method in METHODS if method in counts}
        return {one.method: one for one in compare("local", ordered)} if "local" in ordered else {}


def unpack(regime: Regime, data: Path | None, work: Path) -> str:
    """The dataset setting of a regime; a packed image set is written to `work` as an .npz file for the package."""
    if not regime.packed:
        return str(regime.settings["dataset"])
    target = work / f"{regime.packed}.npz"
    if not target.exists():
        if data is None:
            sys.exit(f"--data: needed for {regime.name}; expected the folder with {regime.packed}.npz and load.py")
        sys.path.insert(0, str(data))
        from load import load  # the reader that belongs to the packed files

        parts = [load(str(data / f"{regime.packed}.npz"), split) for split in regime.splits]
        arrays = {"images": np.concatenate([x for x, _ in parts]), "labels": np.concatenate([y for _, y in parts])}
        if regime.settings["partition"] == "domain":
            arrays["domains"] = np.concatenate([np.full(len(y), i) for i, (_, y) in enumerate(parts)])
            arrays["domain_names"] = np.array(regime.splits)
        np.savez(target, **arrays)
    return str(target)


def execute(experiment: Experiment) -> dict[str, Any]:
    """Run one experiment and return its entry."""
    from fedl2g.engines.inline import InlineEngine
    from fedl2g.federation import Federation
    from fedl2g.methods.registry import get_method

    started, setup = time.process_time(), prepare(experiment)
    method, engine = get_method(experiment.method.name), InlineEngine(setup)
    server = method.server(setup.experiment.method, setup.task)
    federation = Federation(setup.experiment, server, engine)
    federation.run()
    engine.close()
    last = federation.history[-1].accuracy
    assert last is not None
    alignment = [record.metrics["alignment"] for record in federation.history if "alignment" in record.metrics]
    return {
        "accuracy": round(last.pooled, 5),
        "test_samples": [len(part) for part in setup.partition.test],
        "correct": _correct(last.clients, setup),
        "alignment": [round(alignment[i], 3) for i in (0, len(alignment) // 2, -1)] if alignment else [],
        "cpu_seconds": round(time.process_time() - started),
    }


def _correct(accuracies: dict[int, float], setup: Setup) -> list[int]:
    """Correct predictions of each client."""
    return [round(accuracies[client] * len(part)) for client, part in enumerate(setup.partition.test)]


def tables(study: Study) -> str:
    """Markdown: the goal, points against local for every regime and main method, then each regime in detail."""
    found = {regime.name: study.differences(regime) for regime in study.regimes}
    goal = [_goal(name, differences) for name, differences in found.items() if _is_complete(differences)]
    shown = [method for method in MAIN if method != "local"]
    lines = [
        "### The goal",
        "",
        "| setting | local, other batches | fedl2g-l: published, recommended | (1) | (2) "
        "| fedl2g-f: published, recommended | (1) | (2) |",
        "|---|---|---|---|---|---|---|---|",
        *goal,
        "",
        "### Points against local training",
        "",
        "| regime | " + " | ".join(shown) + " |",
        "|---" * (len(shown) + 1) + "|",
    ]
    for name, differences in found.items():
        if differences:
            cells = [_interval(differences[m]) if m in differences else "" for m in shown]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    for regime in study.regimes:
        if found[regime.name]:
            lines += ["", *_detail(regime, study.read(regime), list(found[regime.name].values()))]
    return "\n".join(lines)


def _is_complete(differences: dict[str, Difference]) -> bool:
    return {CONTROL, "fedl2g-l", "fedl2g-l, recommended", "fedl2g-f", "fedl2g-f, recommended"} <= set(differences)


def _goal(name: str, differences: dict[str, Difference]) -> str:
    """A row of the goal's table: (1) at most 0.5 points below local, or published is so too; (2) above published."""
    cells = [name, points(differences[CONTROL].difference)]
    for method in ("fedl2g-l", "fedl2g-f"):
        published, recommended = differences[method].difference, differences[f"{method}, recommended"].difference
        harmless = any(round(100 * one, 1) >= -0.5 for one in (published, recommended))
        cells += [f"{points(published)}, {points(recommended)}"]
        cells += ["met" if holds else "**missed**" for holds in (harmless, recommended > published)]
    return "| " + " | ".join(cells) + " |"


def put_into(page: Path, text: str) -> None:
    """Replace the tables of a page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        sys.exit(f"{page}: no place for the tables; expected the lines {BEGIN} and {END}; add them")
    write_text(page, f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def _detail(regime: Regime, runs: dict[str, Any], differences: Sequence[Difference]) -> list[str]:
    local = [entry["accuracy"] for key, entry in runs.items() if key.startswith("local | ")]
    lines = [f"### {regime.name}", "", f"Local training: {100 * float(np.mean(local)):.1f} % ({len(local)} seeds).", ""]
    lines += ["| method | seeds | points against local | gain / same / lose | worst client | Holm's p | alignment |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for one in differences:
        traces = [e["alignment"] for k, e in runs.items() if k.startswith(f"{one.method} | ") and e["alignment"]]
        alignment = " to ".join(f"{float(np.mean([t[i] for t in traces])):.2f}" for i in (0, -1)) if traces else ""
        lines.append(
            f"| {one.method} | {len(one.seeds)} | {_interval(one)} | {one.gain} / {one.unchanged} / {one.lose} "
            f"| {points(one.worst.difference)} | {one.p_holm:.3f} | {alignment} |"
        )
    return lines


def _interval(one: Difference) -> str:
    text = f"{points(one.difference)} [{points(one.low)}, {points(one.high)}]"
    return f"**{text}**" if one.verdict != "no clear difference" else text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=tuple(SIZES), default="small")
    parser.add_argument("--data", type=Path, help="folder of the packed image sets, with their reader load.py")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "fedl2g-when-it-helps")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--only", default="", help="regimes whose name contains this text")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--table", action="store_true", help="print the tables and run nothing")
    parser.add_argument("--into", type=Path, metavar="PAGE", help="replace the tables of this Markdown page")
    options = parser.parse_args()
    study = Study(options.size, options.results, options.only)
    if options.table or options.into:
        put_into(options.into, tables(study)) if options.into else print(tables(study))
        return
    options.work.mkdir(parents=True, exist_ok=True)
    study.folder.mkdir(parents=True, exist_ok=True)
    missing = list(study.todo())
    datasets = {regime.name: unpack(regime, options.data, options.work) for regime, _, _ in missing}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, spawn, initializer=_one_thread) as pool:
        started = {pool.submit(execute, study.experiment(r, m, s, datasets[r.name])): (r, m, s) for r, m, s in missing}
        for done in as_completed(started):
            regime, method, seed = started[done]
            entry = done.result()
            study.store(regime, f"{method} | {seed}", entry)
            print(f"{regime.name} | {method} | {seed}: {entry['accuracy']} ({entry['cpu_seconds']} s)", flush=True)


def _one_thread() -> None:
    import torch

    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    torch.set_num_threads(1)


if __name__ == "__main__":
    main()
