"""`fedl2g export`: writes a client's trained network in a form that needs no fedl2g to predict.

`weights.safetensors` is the network's state dict, `model.torchscript` a program from images (N x C x H x W, values 0 to
255) to scores, the largest of which is the predicted class, `model.pt2` and `model.onnx` the same program for
torch.export and ONNX, and `model.json` describes its input, classes, round and accuracy. The programs predict as the
method does, which may take more than the client's own network: a shared head, prototypes, a shared network.
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

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from fedl2g.deploy.own_site import stored_setup
from fedl2g.deploy.programs import write_programs
from fedl2g.deploy.site_file import read_site
from fedl2g.engines.flower.store import find_client, stored_model
from fedl2g.engines.states import write_state
from fedl2g.errors import RunError
from fedl2g.files import reason_of, replacing, write_text
from fedl2g.learning.client import MOMENTS
from fedl2g.methods.base import AnyClientHalf
from fedl2g.round.record import chosen_on
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.models import ClientModel, TrainedModels, Which, client_model
from fedl2g.runs.scores import score_client
from fedl2g.setup import Setup


@dataclass(frozen=True)
class Exported:
    """The files of an exported model, and one line that says what it is."""

    files: list[Path]
    summary: str


class Predictor(nn.Module):
    """Maps images with values 0 to 255 to scores, scaling them as in training and predicting as the method does."""

    def __init__(self, half: AnyClientHalf) -> None:
        super().__init__()
        self.state = nn.ModuleDict({name: part for name, part in half.state.items() if name != MOMENTS})
        self.received = half.received
        self._prepare = half.client.preparation
        self._predict = half.predict

    def forward(self, images: Tensor) -> Tensor:
        return self._predict(self._prepare(images))


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
    return _export(model, setup, {"site": file.name, "run": stored.run}, metrics, out)


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
    return _export(model, models.setup, {"client": client}, metrics, out)


def _export(model: ClientModel, setup: Setup, whose: dict[str, Any], metrics: Sequence[str], out: Path) -> Exported:
    predictor, shape = Predictor(model.half).eval(), setup.dataset.shape
    images = torch.linspace(0, 255, 3 * torch.Size(shape).numel()).reshape(3, *shape)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.jit.trace(predictor, images[:2])  # type: ignore[no-untyped-call]
        exported, expected = program(images), predictor(images)
        if exported.shape != expected.shape or not torch.allclose(exported, expected, atol=1e-5):
            raise RunError(
                f"model: {model.architecture} predicts differently as TorchScript; use the weights of its checkpoint "
                "instead"
            )
    correct, samples = model.counts
    about = {
        "architecture": model.architecture,
        "which": model.which,
        "round": model.round,
        "test_accuracy": correct / samples,
        "test_samples": samples,
        "selection": setup.experiment.selection,
        **whose,
        "classes": list(setup.dataset.class_names),
        "input": ["N", *shape],
        "values": "0 to 255",
        **({"metrics": score_client(model, metrics)} if metrics else {}),
    }
    files = [out / "weights.safetensors", out / "model.torchscript", out / "model.json"]
    try:
        out.mkdir(parents=True, exist_ok=True)
        tensors = model.network.state_dict().items()
        write_state(files[0], {name: tensor.contiguous().clone() for name, tensor in tensors})
        with replacing(files[1]) as partial:
            _save_program(program, partial)
        files[2:2] = write_programs(predictor, images, out)
        write_text(files[-1], json.dumps(about, indent=2))
    except (OSError, SafetensorError) as error:
        raise RunError(f"--out: {out} cannot be written ({reason_of(error)}); choose another folder") from error
    who = f"site {whose['site']}" if "site" in whose else f"client {model.client}"
    chosen = f" ({chosen_on(setup.experiment.selection)})" if model.which == "best" else ""
    summary = (
        f"{who}, {model.architecture}, {model.which} model: round {model.round}{chosen}, test accuracy "
        f"{correct / samples:.2%} ({correct} of {samples} samples)"
    )
    return Exported(files, summary)


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
