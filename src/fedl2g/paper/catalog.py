"""The experiments of the paper and their cells, read from experiments.toml and numbers.json (imports no torch)."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

from fedl2g.errors import SettingError, choices


@dataclass(frozen=True)
class Column:
    """One column of a table: the settings of its cells, and the key of its numbers in numbers.json."""

    name: str
    heading: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    paper: str = ""
    metric: str = "accuracy"
    methods: tuple[str, ...] = ()
    same_table: bool = False
    small: Mapping[str, Any] = field(default_factory=dict)
    smoke: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PaperExperiment:
    """A table or figure of the paper: its settings and printed numbers."""

    name: str
    kind: str
    title: str
    methods: tuple[str, ...]
    columns: tuple[Column, ...]
    figure: str = ""
    rounds: bool = False  # whether the paper prints the round of the best accuracy
    notes: tuple[str, ...] = ()
    method_notes: tuple[Mapping[str, Any], ...] = ()  # `text` about `methods`
    numbers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)

    def notes_on(self, methods: Collection[str]) -> list[str]:
        """The notes about any of these methods."""
        return [note["text"] for note in self.method_notes if not set(note["methods"]).isdisjoint(methods)]

    def rows(self, column: Column) -> tuple[str, ...]:
        """The methods that have a cell in this column."""
        return tuple(m for m in self.methods if (not column.methods or m in column.methods))

    def paper(self, method: str, column: Column) -> dict[str, float] | None:
        """The paper's number: mean, and std and rounds if printed; None if there is none."""
        value = self.numbers.get(method, {}).get(column.paper or column.name)
        if value is None:
            return None
        return dict(value) if isinstance(value, Mapping) else {"mean": float(value)}

    def excluded(self, method: str, column: Column) -> bool:
        """Whether the paper has no such cell (null in numbers.json)."""
        row = self.numbers.get(method, {})
        key = column.paper or column.name
        return key in row and row[key] is None

    def cells(self) -> list[tuple[str, Column]]:
        """All (method, column) pairs, row by row within a column."""
        return [(m, c) for c in self.columns for m in self.rows(c) if not self.excluded(m, c)]


@dataclass(frozen=True)
class Scale:
    """How the paper's settings are scaled down to fit a machine."""

    name: str
    summary: str
    seeds: int
    first_seed: int
    rules: Mapping[str, Any] = field(repr=False, default_factory=dict)

    def apply(self, column: Column, method: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of a cell: the paper's, changed by this scale's rules."""
        # The method first: setting it later would reset its options.
        settings: dict[str, Any] = {"method": method, **defaults, **column.settings}
        own = dict(getattr(column, self.name, {}) or {})
        factor = self.rules.get("warmup_factor")
        if factor is not None and "method.warmup_rounds" in settings:
            rounds = int(settings["method.warmup_rounds"])
            settings["method.warmup_rounds"] = max(round(rounds * factor), 1) if rounds else 0
        if own.pop("warmup_on_top", False):
            own["rounds"] += settings.get("method.warmup_rounds", 0)
        settings |= self.rules.get("set", {})
        for name, most in self.rules.get("most", {}).items():
            if name != "samples" and name in settings:
                settings[name] = min(settings[name], most)
        models: Mapping[str, str] = self.rules.get("models", {})
        settings["models"] = models.get(settings["models"], models.get("*", settings["models"]))
        kind = str(settings["partition"]).partition(":")[0]
        settings["partition"] = self.rules.get("partitions", {}).get(kind, settings["partition"])
        return settings | own

    @property
    def most_samples(self) -> int | None:
        """The maximum number of images of a dataset."""
        most: int | None = self.rules.get("most", {}).get("samples")
        return most


@dataclass(frozen=True)
class Cell:
    """One run of the paper's tables: a method in a column, with one seed."""

    method: str
    column: str
    seed: int
    settings: Mapping[str, Any]

    @property
    def folder(self) -> str:
        """The name of the cell's directory: equal for equal settings, so that tables share runs."""
        text = json.dumps({**self.settings, "seed": self.seed}, sort_keys=True)
        return f"{self.method}-{hashlib.sha256(text.encode()).hexdigest()[:12]}-s{self.seed}"


@cache
def _content() -> tuple[dict[str, Any], dict[str, Any]]:
    home = files("fedl2g.paper")
    return (
        tomllib.loads((home / "experiments.toml").read_text(encoding="utf-8")),
        json.loads((home / "numbers.json").read_text(encoding="utf-8")),
    )


def paper_experiments() -> dict[str, PaperExperiment]:
    """Every experiment by name, in the paper's order."""
    content, numbers = _content()
    return {
        entry["name"]: read_experiment(entry, content["all_methods"], numbers.get(entry["name"], {}))
        for entry in content["experiment"]
    }


def read_experiment(
    entry: Mapping[str, Any], all_methods: Sequence[str], numbers: Mapping[str, Any]
) -> PaperExperiment:
    """An experiment from its entry in experiments.toml and its numbers."""
    columns = tuple(
        Column(**{**c, "heading": tuple(c.get("heading", (c["name"],))), "methods": tuple(c.get("methods", ()))})
        for c in entry["columns"]
    )
    return PaperExperiment(
        name=entry["name"],
        kind=entry["kind"],
        title=entry["title"],
        methods=tuple(entry.get("methods", all_methods)),
        columns=columns,
        figure=entry.get("figure", ""),
        rounds=entry.get("rounds", False),
        notes=tuple(entry.get("notes", ())),
        method_notes=tuple(entry.get("method_notes", ())),
        numbers=numbers.get("values", {}),
    )


def paper_experiment(name: str) -> PaperExperiment:
    """One experiment of the paper."""
    known = paper_experiments()
    if name not in known:
        raise SettingError(f"NAME: {name!r} is not an experiment of the paper; {choices(name, known)}")
    return known[name]


def scales() -> tuple[str, ...]:
    """The names of all scales."""
    return tuple(_content()[0]["scales"])


def scale(name: str) -> Scale:
    """A scale by name."""
    known = _content()[0]["scales"]
    if name not in known:
        raise SettingError(f"--scale: {name!r} is not known; {choices(name, known)}")
    rules = known[name]
    return Scale(name, rules["summary"], rules["seeds"], rules["first_seed"], rules)


def plan(
    experiment: PaperExperiment,
    at: Scale,
    seeds: int | None = None,
    only: Iterable[str] = (),
    overrides: Mapping[str, Any] | None = None,
) -> list[Cell]:
    """The cells to run, seed by seed, so that an interrupted study has full tables for some seeds."""
    content = _content()[0]
    result = []
    for number in range(at.seeds if seeds is None else seeds):
        for method, column in narrow(experiment, only).cells():
            defaults = content["defaults"] | content["method_defaults"].get(method, {})
            settings = _shorter_warmup(at.apply(column, method, defaults), dict(overrides or {}))
            result.append(Cell(method, column.name, at.first_seed + number, settings))
    return result


def _shorter_warmup(settings: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """The settings with the user's; a preset warm-up that would take all of the user's `rounds` takes half of them."""
    warmup = "method.warmup_rounds"
    if "rounds" in overrides and warmup in settings:
        rounds = int(overrides["rounds"])
        if settings[warmup] >= rounds:
            settings = settings | {warmup: rounds // 2}
    return settings | overrides


def narrow(experiment: PaperExperiment, only: Iterable[str]) -> PaperExperiment:
    """The part of an experiment selected by --only: methods, columns, parts of column names, or * patterns."""
    all_columns = [column.name for column in experiment.columns]
    methods: set[str] = set()
    columns: set[str] = set()
    for word in (part.strip() for text in only for part in text.split(",")):
        if word in experiment.methods:
            methods.add(word)
            continue
        found = {name for name in all_columns if name == word or fnmatch.fnmatch(name, word)}
        found = found or {name for name in all_columns if word in name.split("/")}
        if not found:
            known = [*experiment.methods, *all_columns]
            raise SettingError(
                f"--only: {word!r} is not a method or column of {experiment.name!r}; {choices(word, known)}"
            )
        columns |= found
    return replace(
        experiment,
        methods=tuple(m for m in experiment.methods if not methods or m in methods),
        columns=tuple(column for column in experiment.columns if not columns or column.name in columns),
    )
