"""The states of clients as files: written behind, read ahead, replaced and never changed, linked by checkpoints."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from fedl2g.engines.states import State, StateStore, stored_shapes


def test_a_file_is_replaced_and_never_changed(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "store")
    store.write(3, {"a": torch.zeros(2)})
    store.export(3, tmp_path / "kept")
    store.write_behind(3, {"a": torch.ones(2)})
    assert store.read(3)["a"].tolist() == [1, 1]  # wherever it is on its way
    store.export(3, tmp_path / "new")
    assert safetensors.torch.load_file(tmp_path / "kept")["a"].tolist() == [0, 0]
    assert safetensors.torch.load_file(tmp_path / "new")["a"].tolist() == [1, 1]
    assert stored_shapes(tmp_path / "new") == {"a": (2,)}
    store.close()
    assert not (tmp_path / "store").exists()


def test_many_states_are_written_behind_and_read_ahead(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "store")
    for client in range(30):
        store.write_behind(client, {"a": torch.full((4,), client)})
    for client in range(30):
        store.read_ahead(client + 1)
        assert store.read(client)["a"].tolist() == [client] * 4
    assert 30 not in store
    store.clear()
    assert 3 not in store


def _slow_disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """A disk that writes (a little of each state) only once the event is set."""
    go, save = threading.Event(), safetensors.torch.save_file

    def save_later(state: State, path: Path) -> None:
        go.wait()
        save({"first": state["a"][:1].clone()}, path)

    monkeypatch.setattr(safetensors.torch, "save_file", save_later)
    return go


@pytest.mark.parametrize(
    ("size", "several"),
    [(10, 8), (40_000_000, 1)],  # 8 small ones wait, or one of 160 MB: two would be above 256 MB
)
def test_so_many_states_wait_for_the_disk_before_the_computation_does(
    size: int, several: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = _slow_disk(monkeypatch)
    store = StateStore(tmp_path / "store")
    state = {"a": torch.empty(size)}
    for client in range(several):
        store.write_behind(client, state)  # returns at once
    one_more = threading.Thread(target=store.write_behind, args=(several, state))
    one_more.start()
    one_more.join(0.3)
    assert one_more.is_alive()  # it waits for room
    go.set()
    one_more.join()
    for client in range(several + 1):
        store.export(client, tmp_path / f"copy-{client}")
        assert (tmp_path / f"copy-{client}").is_file()
    store.close()


def test_without_links_files_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.EXDEV, "another disk")

    monkeypatch.setattr(os, "link", refuse)
    store = StateStore(tmp_path / "store")
    store.write(0, {"a": torch.zeros(2)})
    store.export(0, tmp_path / "copy")
    (own,) = (tmp_path / "store").iterdir()
    assert not (tmp_path / "copy").samefile(own)
    assert (tmp_path / "copy").read_bytes() == own.read_bytes()
    other = StateStore()
    other.adopt(0, tmp_path / "copy")
    assert other.read(0)["a"].tolist() == [0, 0]
    other.close()


def test_a_full_disk_is_reported_when_the_state_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = StateStore(tmp_path / "store")
    with monkeypatch.context() as patch:
        patch.setattr(safetensors.torch, "save_file", full)
        store.write_behind(0, {"a": torch.zeros(2)})
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                store.export(0, tmp_path / "x")
        assert store.read(0)["a"].tolist() == [0, 0]  # the only copy is not lost
    store.export(0, tmp_path / "x")  # there is room again
    assert safetensors.torch.load_file(tmp_path / "x")["a"].tolist() == [0, 0]
    store.close()
