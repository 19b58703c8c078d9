"""How much memory the clients of a host may take."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedl2g.engines.memory import available_bytes, memory_budget
from five_clients import tiny


def _machine(root: Path, kilobytes: int, own_group: str = "/") -> None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable:   {kilobytes} kB\nBuffers: 7 kB\n")
    (root / "proc/self/cgroup").write_text(f"0::{own_group}\n")


def _group(folder: Path, limit: str) -> None:
    folder.mkdir(parents=True)
    for name, text in (("max", limit), ("current", "800000"), ("stat", "anon 700000\ninactive_file 100000")):
        (folder / f"memory.{name}").write_text(text + "\n")


@pytest.mark.parametrize(("limit", "expected"), [("max", 5_120_000), ("1000000", 300_000), ("9000000", 5_120_000)])
def test_memory_left_in_a_container(limit: str, expected: int, tmp_path: Path) -> None:
    """1000000 - 800000 are free, and 100000 of the cache of files make room."""
    _machine(tmp_path, 5000)
    _group(tmp_path / "sys/fs/cgroup", limit)
    assert available_bytes(tmp_path) == expected


def test_the_tightest_of_the_groups_around_a_process_counts(tmp_path: Path) -> None:
    _machine(tmp_path, 5000, "/user/job")
    _group(tmp_path / "sys/fs/cgroup/user/job", "4000000")
    assert available_bytes(tmp_path) == 3_300_000
    for name, text in (("max", "2000000"), ("current", "1200000"), ("stat", "inactive_file 0")):
        (tmp_path / f"sys/fs/cgroup/user/memory.{name}").write_text(text + "\n")
    assert available_bytes(tmp_path) == 800_000


def test_a_group_that_holds_more_than_its_limit_leaves_nothing(tmp_path: Path) -> None:
    _machine(tmp_path, 5000)
    _group(tmp_path / "sys/fs/cgroup", "100")
    assert available_bytes(tmp_path) == 0


def test_without_these_files_a_default_is_returned(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) > 0
    assert available_bytes() > 0


def test_hosts_share_half_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedl2g.engines.memory.available_bytes", lambda: 1200)
    assert [memory_budget(tiny(), torch.device("cpu"), hosts) for hosts in (1, 3)] == [600, 200]
    limited = tiny(execution={"memory_mb": 3})
    assert [memory_budget(limited, torch.device("cpu"), hosts) for hosts in (1, 3)] == [3 * 2**20, 2**20]


def test_memory_of_gpus_is_shared_by_their_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1200 * (1 + device.index), 10_000))
    experiment = tiny(device="cuda:0,cuda:1")
    assert [memory_budget(experiment, torch.device("cuda", index), hosts=3) for index in (0, 1)] == [300, 1200]
    experiment = tiny(device="cuda:0,cuda:1", execution={"memory_mb": 3})
    assert memory_budget(experiment, torch.device("cuda:0"), hosts=3) == 2**20
