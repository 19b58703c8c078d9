"""`fedl2g export`: writes a client's trained network in a form that needs no fedl2g to predict.

`weights.safetensors` is the network's state dict, `model.torchscript` a program from images (N x C x H x W, values 0 to
255) to logits, and `model.json` describes its input and classes.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from fedl2g.deploy.site_file import read_site
from fedl2g.engines.flower.store import find_client, newest_state
from fedl2g.engines.states import network_of, write_state
from fedl2g.errors import RunError, SettingError
from fedl2g.files import reason_of, replacing, write_text
from fedl2g.learning.client import Task
from fedl2g.models import SplitModel


class Predictor(nn.Module):
    """Maps images with values 0 to 255 to logits, scaling them as in training."""

    def __init__(self, model: SplitModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        scaled = images.to(next(self.model.parameters()).dtype) / 127.5 - 1.0
        return self.model(scaled)[1]


def export_site(path: Path, out: Path, *, run: str | None = None, trust: bool = False) -> list[Path]:
    """Export the model in a site's store, of its newest run or of `run`."""
    file = read_site(path, trust=trust)
    file.use_code()
    folder = find_client(file.path(file.store), file.client_id, run)
    round, state, about = newest_state(folder)
    described_in = folder.parent / "federation.json"
    try:
        federation = json.loads(described_in.read_text(encoding="utf-8"))
        classes = tuple(map(str, federation["classes"]))
        channels, height, width = map(int, federation["image_shape"])
        dtype = getattr(torch, {"float32": "float32", "float64": "float64"}[federation["precision"]])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RunError(f"{described_in}: cannot be read ({reason_of(error)}); restore it from a copy") from error
    shape = (channels, height, width)
    task = Task(classes=len(classes), image_shape=shape, seed=0, rounds=1, auxiliary="small_cnn", dtype=dtype)
    described = {"architecture": file.model, "round": round, "site": file.name, "run": about["run"]}
    return _export(task, file.model, state, classes, described, out)


def export_client(path: Path, client: int, out: Path, *, trust: bool = False) -> list[Path]:
    """Export the model of one client from a run directory's last checkpoint."""
    from fedl2g.runs.checkpoint import newest
    from fedl2g.runs.directory import RunDirectory
    from fedl2g.setup import Setup, load_data

    directory = RunDirectory.open(path, trust=trust)
    experiment = directory.experiment()
    if not 0 <= client < experiment.clients:
        raise SettingError(
            f"--client: {client} is not a client of {path}; clients are numbered 0 to {experiment.clients - 1}"
        )
    checkpoint = newest(directory.checkpoints)
    state = checkpoint.client(client) if checkpoint is not None else None
    if checkpoint is None or state is None:
        raise RunError(
            f"{path}: holds no trained model of client {client}, which had not trained by the last checkpoint; "
            "choose another client, or run more rounds"
        )
    setup = Setup(experiment, load_data(experiment), directory.partition())
    architecture = setup.architecture(client)
    described = {"architecture": architecture, "round": checkpoint.round, "client": client}
    return _export(setup.task, architecture, state, setup.dataset.class_names, described, out)


def _export(
    task: Task,
    architecture: str,
    state: Mapping[str, Tensor],
    classes: tuple[str, ...],
    described: dict[str, Any],
    out: Path,
) -> list[Path]:
    model = task.build(architecture, "export")
    try:
        model.load_state_dict(network_of(state))
    except RuntimeError as error:
        raise RunError(
            f"model: the stored state does not fit {architecture} with {task.classes} classes "
            f"({' '.join(str(error).split())}); restore the model's name or code"
        ) from error
    predictor = Predictor(model).eval()
    images = torch.linspace(0, 255, 3 * torch.Size(task.image_shape).numel()).reshape(3, *task.image_shape)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.jit.trace(predictor, images[:2])  # type: ignore[no-untyped-call]
        exported, expected = program(images), predictor(images)
        if exported.shape != expected.shape or not torch.allclose(exported, expected, atol=1e-5):
            raise RunError(
                f"model: {architecture} predicts differently as TorchScript; use the weights of its checkpoint instead"
            )
    about = {**described, "classes": list(classes), "input": ["N", *task.image_shape], "values": "0 to 255"}
    files = [out / "weights.safetensors", out / "model.torchscript", out / "model.json"]
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_state(files[0], {name: tensor.contiguous().clone() for name, tensor in model.state_dict().items()})
        with replacing(files[1]) as partial:
            program.save(str(partial))
        write_text(files[2], json.dumps(about, indent=2))
    except (OSError, SafetensorError) as error:
        raise RunError(f"--out: {out} cannot be written ({reason_of(error)}); choose another folder") from error
    return files
