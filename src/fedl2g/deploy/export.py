"""`fedl2g export`: a client's trained network for use elsewhere, with no need of fedl2g to predict.

`weights.safetensors` is the network's state dict, `model.torchscript` a program from images (N x C x H x W, values 0 to
255) to logits, and `model.json` says what the logits mean.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from fedl2g.deploy.site_file import read_site
from fedl2g.engines.flower.store_files import newest_generation, run_of_site
from fedl2g.errors import RunError, SettingError
from fedl2g.learning.client import Task
from fedl2g.models import SplitModel

_STATE, _NETWORK = "state/", "model."  # of the names of tensors


class Predictor(nn.Module):
    """From images with values 0 to 255 to logits, as the client saw them in training."""

    def __init__(self, model: SplitModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        scaled = images.to(next(self.model.parameters()).dtype) / 127.5 - 1.0
        return self.model(scaled)[1]


def export_site(path: Path, out: Path, *, run: str | None = None) -> list[Path]:
    """Export the model in a site's own store: of its newest run, or of the one named."""
    file = read_site(path)
    file.use_code()
    folder = run_of_site(file.path(file.store), file.client_id, run)
    round, tensors, about = newest_generation(folder)
    federation = json.loads((folder.parent / "federation.json").read_text(encoding="utf-8"))
    task = Task(
        classes=len(federation["classes"]),
        image_shape=tuple(federation["image_shape"]),
        seed=0,
        rounds=1,
        auxiliary="small_cnn",
        dtype=getattr(torch, federation["precision"]),
    )
    state = {name.removeprefix(_STATE): tensor for name, tensor in tensors.items() if name.startswith(_STATE)}
    described = {"architecture": file.model, "round": round, "site": file.name, "run": about["run"]}
    return _export(task, file.model, state, tuple(federation["classes"]), described, out)


def export_client(path: Path, client: int, out: Path) -> list[Path]:
    """Export the model of one client from a run directory's last checkpoint."""
    from fedl2g.data import load_dataset
    from fedl2g.engines.states import client_file
    from fedl2g.runs.directory import RunDirectory
    from fedl2g.setup import Setup

    directory = RunDirectory.open(path)
    experiment = directory.experiment()
    if not 0 <= client < experiment.clients:
        raise SettingError(f"--client {client}: the clients of {path} are numbered 0 to {experiment.clients - 1}")
    checkpoints = sorted(directory.checkpoints.glob("round-*"))
    if not checkpoints or not client_file(checkpoints[-1], client).is_file():
        raise RunError(f"{path} holds no trained model of client {client}: it has not trained before a checkpoint")
    dataset = load_dataset(experiment.dataset, samples=experiment.samples, image_size=experiment.image_size)
    site = Setup(experiment, dataset, directory.partition())
    state = safetensors.torch.load_file(client_file(checkpoints[-1], client))
    described = {"architecture": site.architecture(client), "round": int(checkpoints[-1].name[6:]), "client": client}
    return _export(site.task, site.architecture(client), state, dataset.class_names, described, out)


def _export(
    task: Task,
    architecture: str,
    state: Mapping[str, Tensor],
    classes: tuple[str, ...],
    described: dict[str, Any],
    out: Path,
) -> list[Path]:
    model = task.build(architecture, "export")
    own = {name.removeprefix(_NETWORK): tensor for name, tensor in state.items() if name.startswith(_NETWORK)}
    model.load_state_dict(own)
    predictor = Predictor(model).eval()
    images = torch.linspace(0, 255, 3 * torch.Size(task.image_shape).numel()).reshape(3, *task.image_shape)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.jit.trace(predictor, images[:2])  # type: ignore[no-untyped-call]
        if not torch.allclose(program(images), predictor(images), atol=1e-5):
            raise RunError(
                f"the model {architecture} does not predict the same outside Python; export its weights alone"
            )
    about = {**described, "classes": list(classes), "input": ["N", *task.image_shape], "values": "0 to 255"}
    files = [out / "weights.safetensors", out / "model.torchscript", out / "model.json"]
    try:
        out.mkdir(parents=True, exist_ok=True)
        safetensors.torch.save_file({k: t.contiguous().clone() for k, t in model.state_dict().items()}, files[0])
        program.save(str(files[1]))
        files[2].write_text(json.dumps(about, indent=2), encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot write to {out}: {error.strerror}") from error
    return files
