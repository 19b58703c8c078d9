"""`fedl2g predict`: runs an exported model on samples and writes the predicted classes as CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import TextIOBase
from pathlib import Path
from typing import Any, TextIO
from zipfile import BadZipFile

import torch

from fedl2g.deploy.programs import PROGRAM, load_program
from fedl2g.deploy.samples import Form, read_samples
from fedl2g.errors import RunError
from fedl2g.files import reason_of
from fedl2g.schema import Schema, image_schema


@dataclass(frozen=True)
class ExportedModel:
    """A folder written by `fedl2g export`: its program, its classes and what it takes."""

    run: Callable[[torch.Tensor], torch.Tensor]
    classes: list[str]
    form: Form


def open_model(folder: Path) -> ExportedModel:
    """Open an exported model."""
    about = folder / "model.json"
    try:
        described = json.loads(about.read_text(encoding="utf-8"))
        classes, form = [str(name) for name in described["classes"]], _form(described)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise RunError(
            f"{about}: cannot be read ({reason_of(error)}); expected a folder written by `fedl2g export`"
        ) from error
    try:
        run = load_program(folder / PROGRAM)
    except (OSError, RuntimeError, ValueError, LookupError, AssertionError, BadZipFile) as error:
        raise RunError(f"{folder / PROGRAM}: cannot be read ({reason_of(error)}); export the model again") from error
    return ExportedModel(run, classes, form)


def _form(described: dict[str, Any]) -> Form:
    if "schema" not in described:  # written before there were other kinds than images
        return Form(image_schema(*map(int, described["input"][1:])))
    text = tuple(str(name) for name in described.get("text", ()))
    return Form(Schema.from_json(described["schema"]), str(described["type"]), bool(described["scaled"]), text)


def predict(model: ExportedModel, source: Path) -> Iterator[tuple[str, list[float]]]:
    """The name and the scores of every sample of a file or folder; see `read_samples`."""
    names, batches = read_samples(source, model.form)
    named = iter(names)
    taken = torch.int64 if model.form.inputs.kind == "text" else torch.float32
    for batch in batches:
        scores = model.run(torch.from_numpy(batch).to(taken))
        yield from zip(named, scores.tolist(), strict=False)


def write_csv(model: ExportedModel, found: Iterator[tuple[str, list[float]]], file: TextIO | TextIOBase) -> int:
    """Write a line per sample: its name, the predicted class, the score of every class; returns how many."""
    writer = csv.writer(file, lineterminator="\n")
    header = ["input", "class", *(f"score {name}" for name in model.classes)]
    count = 0
    for name, scores in found:
        if not count:  # not before an input that cannot be read is refused
            writer.writerow(header)
        best = max(range(len(scores)), key=scores.__getitem__)
        writer.writerow([name, model.classes[best], *(f"{score:.6g}" for score in scores)])
        count += 1
    return count
