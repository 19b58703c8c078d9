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

from fedl2g.deploy.programs import ONNX, PROGRAM, has_onnx_runtime, load_onnx, load_program
from fedl2g.deploy.samples import Form, read_samples
from fedl2g.errors import RunError
from fedl2g.files import reason_of
from fedl2g.folder import GIB, Folder
from fedl2g.schema import PLURALS, Schema, image_schema
from fedl2g.seals import require_plain_text

_LARGEST = 2 * GIB  # bytes; no ONNX file is larger


@dataclass(frozen=True)
class ExportedModel:
    """A folder written by `fedl2g export`: its program, its classes and what it takes."""

    run: Callable[[torch.Tensor], torch.Tensor]
    classes: list[str]
    form: Form


def open_model(folder: Path, *, trust: bool = False) -> ExportedModel:
    """Open an exported model: its ONNX program, which only computes, or with `trust` its torch.export program."""
    found = Folder(folder)
    try:
        described = json.loads(found.text("model.json"))
        require_plain_text(folder / "model.json", described)
        classes, form = [str(name) for name in described["classes"]], _form(described)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        reason = f"cannot be read ({reason_of(error)}); expected a folder written by `fedl2g export`"
        raise RunError(f"{folder / 'model.json'}: {reason}") from error
    program = PROGRAM if trust else ONNX
    if not trust and not (has_onnx_runtime() and found.is_file(ONNX)):
        why = "is missing" if has_onnx_runtime() else "needs the package onnxruntime"
        raise RunError(
            f"{folder / ONNX}: {why}; pip install 'fedl2g[onnx]' and export the model again; or, if you trust who made "
            f"it, --trust runs {PROGRAM}, which can hold any code"
        )
    try:
        if trust:
            with found.opened(PROGRAM, _LARGEST) as file:
                run = load_program(file)
        else:
            run = load_onnx(found.read(ONNX, _LARGEST))
    except (OSError, RuntimeError, ValueError, LookupError, AssertionError, BadZipFile) as error:
        raise RunError(f"{folder / program}: cannot be read ({reason_of(error)}); export the model again") from error
    return ExportedModel(run, classes, form)


def _form(described: dict[str, Any]) -> Form:
    if "schema" not in described:  # written before there were other kinds than images
        return Form(image_schema(*described["input"][1:]))
    text = tuple(str(name) for name in described.get("text", ()))
    return Form(Schema.from_json(described["schema"]), str(described["type"]), bool(described["scaled"]), text)


def predict(model: ExportedModel, source: Path) -> Iterator[tuple[str, list[float]]]:
    """The name and the scores of every sample of a file or folder; see `read_samples`."""
    names, batches = read_samples(source, model.form)
    if not names:
        raise RunError(f"{source}: holds no {PLURALS[model.form.inputs.kind]}; expected at least one")
    named = iter(names)
    taken = torch.int64 if model.form.inputs.kind == "text" else torch.float32
    for batch in batches:
        try:
            scores = model.run(torch.from_numpy(batch).to(taken))
        except (ValueError, RuntimeError, AssertionError) as error:
            raise RunError(
                f"{source}: the model does not accept its samples ({reason_of(error)}); expected {model.form.inputs}"
            ) from error
        if scores.shape != (len(batch), len(model.classes)):
            raise RunError(
                f"model.json: has {len(model.classes)} classes, and the program gives {list(scores.shape)} scores for "
                f"{len(batch)} samples; export the model again"
            )
        yield from zip(named, scores.tolist(), strict=False)


def write_csv(model: ExportedModel, found: Iterator[tuple[str, list[float]]], file: TextIO | TextIOBase) -> int:
    """Write a line per sample: its name, the predicted class, the score of every class; returns how many."""
    writer = csv.writer(file, lineterminator="\n")
    header = ["input", "class", *(f"score {name}" for name in model.classes)]
    count = 0
    for name, scores in found:
        if not count:  # only now: an input that cannot be read shall leave no output
            writer.writerow(header)
        best = max(range(len(scores)), key=scores.__getitem__)
        writer.writerow([name, model.classes[best], *(f"{score:.6g}" for score in scores)])
        count += 1
    return count
