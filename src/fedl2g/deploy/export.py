"""`fedl2g export`: writes a client's trained network in a form that needs no fedl2g to predict.

`weights.safetensors` is the network's state dict, `model.torchscript` a program from samples as they were stored (such
as images N x C x H x W, values 0 to 255) to scores, the largest of which is the predicted class, `model.pt2` and
`model.onnx` the same program for torch.export and ONNX, and `model.json` describes its input, classes, round and
accuracy. The programs prepare samples as in training, with the client's own statistics, and predict as the method does,
which may take more than the client's own network: a shared head, prototypes, a shared network.
"""

from __future__ import annotations

import io
import json
import warnings
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from fedl2g.datasets.tables import listed
from fedl2g.deploy.own_site import stored_setup
from fedl2g.deploy.programs import write_programs
from fedl2g.deploy.site_file import read_site
from fedl2g.engines.flower.store import find_client, stored_model
from fedl2g.errors import RunError
from fedl2g.files import reason_of, replacing, write_text
from fedl2g.learning.client import MOMENTS
from fedl2g.methods.base import AnyClientHalf
from fedl2g.models.example import example_batch
from fedl2g.round.record import chosen_on
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.models import ClientModel, TrainedModels, Which, client_model
from fedl2g.runs.scores import score_client
from fedl2g.schema import Schema
from fedl2g.setup import Setup

_MOST = {"uint8": 255.0, "uint16": 65535.0, "float32": 1.0}  # of pixels
_VALUES = {
    "image": "as stored; scaled by the mean and standard deviation that came with the data",
    "signal": "as measured",
    "table": "numbers as measured, NaN where they are missing; categories by their number from 1, 0 where missing",
    "text": "token ids, filled with 0",
}


@dataclass(frozen=True)
class Exported:
    """The files of an exported model, and one line that says what it is."""

    files: list[Path]
    summary: str


class Predictor(nn.Module):
    """Maps samples as stored to scores, preparing them as in training and predicting as the method does."""

    def __init__(self, half: AnyClientHalf) -> None:
        super().__init__()
        self.state = nn.ModuleDict({name: part for name, part in half.state.items() if name != MOMENTS})
        self.received = half.received
        self._prepare = half.client.preparation
        self._predict = half.predict

    def forward(self, samples: Tensor) -> Tensor:
        return self._predict(self._prepare(samples))


def export_site(
    path: Path,
    out: Path,
    *,
    which: Which = "best",
    run: str | None = None,
    metrics: Sequence[str] = (),
    trust: bool = False,
) -> Exported:
    """Export the model in a site's store, of its newest run or of `run`."""
    file = read_site(path, trust=trust)
    file.use_code()
    folder = find_client(file.path(file.store), file.client_id, run)
    stored = stored_model(folder, which)
    setup = stored_setup(file, stored.run, trust=trust)
    model = client_model(setup, file.client_id, stored.state, stored.received, which=which, round=stored.round)
    return _export(model, setup, {"site": file.name, "run": stored.run}, metrics, out, file.text)


def export_client(
    path: Path,
    client: int,
    out: Path,
    *,
    which: Which = "best",
    metrics: Sequence[str] = (),
    trust: bool = False,
) -> Exported:
    """Export the model of one client from a run directory."""
    models = TrainedModels(RunDirectory.open(path, trust=trust), which)
    model = models.load(client)
    if not model.trained:
        remedy = (
            "export that of the last round (--which last), or another client" if which == "best" else "run more rounds"
        )
        raise RunError(
            f"{path}: holds no trained model of client {client}, which had not trained by round {model.round} "
            f"({which}); {remedy}"
        )
    return _export(model, models.setup, {"client": client}, metrics, out, models.setup.experiment.text)


def _export(
    model: ClientModel, setup: Setup, whose: dict[str, Any], metrics: Sequence[str], out: Path, text: str | None
) -> Exported:
    predictor, dataset = Predictor(model.half).eval(), setup.dataset
    pixels, kind = str(dataset.inputs.dtype), dataset.schema.kind
    samples = _examples(dataset.schema, _MOST[pixels] if kind == "image" else 0.0)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.jit.trace(predictor, samples[:2], check_trace=False)  # type: ignore[no-untyped-call]
        exported, expected = program(samples), predictor(samples)
        if exported.shape != expected.shape or not torch.allclose(exported, expected, atol=1e-5):
            raise RunError(
                f"model: {model.architecture} predicts differently as TorchScript; use the weights of its checkpoint "
                "instead"
            )
    correct, tested = model.counts
    about = {
        "architecture": model.architecture,
        "which": model.which,
        "round": model.round,
        "test_accuracy": correct / tested,
        "test_samples": tested,
        "selection": setup.experiment.selection,
        **whose,
        "classes": list(setup.dataset.class_names),
        "kind": kind,
        "input": ["N", *dataset.shape],
        "values": _VALUES[kind] if kind != "image" or dataset.scaling else f"0 to {_MOST[pixels]:g}",
        "schema": dataset.schema.to_json(),
        "type": pixels,
        "scaled": dataset.scaling is not None,
        "text": list(listed(text)),
        **({"metrics": score_client(model, metrics)} if metrics else {}),
    }
    files = [out / "weights.safetensors", out / "model.torchscript", out / "model.json"]
    try:
        out.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.contiguous().clone() for name, tensor in model.network.state_dict().items()}
        with replacing(files[0]) as partial:  # readable as the others are: a state's own file is private
            partial.write_bytes(safetensors.torch.save(tensors))
        with replacing(files[1]) as partial:
            _save_program(program, partial)
        files[2:2] = write_programs(predictor, samples, "images" if kind == "image" else "inputs", out)
        write_text(files[-1], json.dumps(about, indent=2))
    except (OSError, SafetensorError) as error:
        raise RunError(f"--out: {out} cannot be written ({reason_of(error)}); choose another folder") from error
    who = f"site {whose['site']}" if "site" in whose else f"client {model.client}"
    chosen = f" ({chosen_on(setup.experiment.selection)})" if model.which == "best" else ""
    summary = (
        f"{who}, {model.architecture}, {model.which} model: round {model.round}{chosen}, test accuracy "
        f"{correct / tested:.2%} ({correct} of {tested} samples)"
    )
    return Exported(files, summary)


def _examples(inputs: Schema, most: float) -> Tensor:
    """Three samples as stored, one of them with missing numbers or padding."""
    samples = example_batch(inputs, 3)
    if inputs.kind == "image":
        return (samples + 1) * most / 2
    if inputs.kind == "text":
        samples[1, (inputs.shape[0] + 1) // 2 :] = 0
    numbers = [position for position, categories in enumerate(inputs.categories) if not categories]
    if numbers:
        samples[1, numbers[0]] = torch.nan
    return samples


def _save_program(program: torch.jit.ScriptModule, path: Path) -> None:
    """Save a program without its debug records, which hold the paths of this machine's source files."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is torch.export, which is written beside it
        torch.jit.save(program, buffer)
    with zipfile.ZipFile(buffer) as saved, zipfile.ZipFile(path, "w") as kept:
        for name in saved.namelist():
            if not name.endswith(".debug_pkl"):
                kept.writestr(name, saved.read(name))
