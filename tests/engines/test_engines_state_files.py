"""A client's state as a file: its name, its content, and what happens when it cannot be written."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch

from fedl2g.engines.states import StateStore, client_file, client_files, read_state, write_state


def test_a_client_has_one_file_name_and_is_found_by_it(tmp_path: Path) -> None:
    assert client_file(tmp_path, 7).name == "client-000007.safetensors"
    for client in (1_234_567, 7, 12):
        client_file(tmp_path, client).touch()
    for other in (
        "client-x.safetensors",
        "client-²²²²²².safetensors",
        ".client-000003.safetensors.partial-1",
        "state.json",
    ):
        (tmp_path / other).touch()
    assert list(client_files(tmp_path).items()) == [(c, client_file(tmp_path, c)) for c in (7, 12, 1_234_567)]


def test_a_state_comes_back_as_it_was_written(tmp_path: Path) -> None:
    state = {"weight": torch.arange(6.0).reshape(2, 3), "steps": torch.tensor(3)}
    write_state(tmp_path / "state", state, {"round": "4"}, durable=True)
    found = read_state(tmp_path / "state")
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())
    with safetensors.safe_open(tmp_path / "state", framework="pt") as file:
        assert file.metadata() == {"round": "4"}
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_a_full_disk_leaves_the_state_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(tensors: Any, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    write_state(tmp_path / "state", {"a": torch.ones(2)})
    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(OSError, match="No space"):
        write_state(tmp_path / "state", {"a": torch.zeros(2)})
    assert read_state(tmp_path / "state")["a"].tolist() == [1, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_a_state_is_taken_from_a_checkpoint_and_given_to_it_again_and_again(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    write_state(client_file(tmp_path / "checkpoint", 3), {"a": torch.ones(2)})
    store = StateStore(tmp_path / "store")
    for _ in range(2):
        store.adopt(3, client_file(tmp_path / "checkpoint", 3))
        store.export(3, client_file(tmp_path / "checkpoint", 3))
    assert store.read(3)["a"].tolist() == [1, 1]
    for folder in ("checkpoint", "store"):
        assert [path.name for path in (tmp_path / folder).iterdir()] == ["client-000003.safetensors"]
    store.close()
