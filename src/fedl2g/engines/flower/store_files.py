"""Reading a node's store without a run: which runs it holds, and the newest model of one (no Flower needed)."""

from __future__ import annotations

from pathlib import Path

import safetensors
from torch import Tensor

from fedl2g.errors import RunError, SettingError


def run_of_site(store: Path, client: int, run: str | None) -> Path:
    """The folder of a client in its newest run, or in the one named."""
    found = sorted(store.glob(f"*/client-{client:06d}"), key=lambda path: path.stat().st_mtime)
    if run is not None:
        found = [path for path in found if path.parent.name == run]
    if not found:
        runs = ", ".join(sorted(path.parent.name for path in store.glob("*/client-*"))) or "none"
        raise SettingError(f"the store {store} holds no model of client {client} for this run; its runs: {runs}")
    return found[-1]


def newest_generation(folder: Path) -> tuple[int, dict[str, Tensor], dict[str, str]]:
    """The newest round in a client's folder, its tensors and what is written about it."""
    files = sorted(folder.glob("round-*.safetensors"))
    if not files:
        raise RunError(f"{folder} holds no model: the client has not finished a round")
    try:
        with safetensors.safe_open(files[-1], framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            return int(files[-1].stem.removeprefix("round-")), tensors, file.metadata() or {}
    except (OSError, safetensors.SafetensorError) as error:
        raise RunError(f"{files[-1]} cannot be read: {error}") from error
