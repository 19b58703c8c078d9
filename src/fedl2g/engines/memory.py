"""The memory budget for the clients of a host."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from fedl2g.experiment import Experiment
from fedl2g.learning.devices import resolve_device


def memory_budget(experiment: Experiment, device: torch.device, hosts: int) -> int:
    """Bytes that each host on this machine may use for clients; by default its share of half the free memory."""
    megabytes = experiment.execution.memory_mb
    if megabytes is not None:
        return megabytes * 2**20 // hosts
    if device.type == "cuda":  # the networks are on the GPU, shared with the other workers on it
        sharing = [resolve_device(experiment.device, worker) for worker in range(hosts)].count(device)
        return torch.cuda.mem_get_info(device)[0] // 2 // max(1, sharing)
    return available_bytes() // 2 // hosts


def available_bytes(root: Path = Path("/")) -> int:
    """Memory still available on this machine and within the control group (container) of this process."""
    return min([_machine_bytes(root / "proc/meminfo"), *_group_bytes(root)])


def _machine_bytes(meminfo: Path) -> int:
    try:
        for line in meminfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (ValueError, OSError, AttributeError):
        return 4 * 2**30


def _group_bytes(root: Path) -> list[int]:
    """The memory left under the limits of this process's control group and its ancestors (cgroup v2)."""
    try:
        own = (root / "proc/self/cgroup").read_text(encoding="utf-8").strip().rpartition("0::/")[2]
    except OSError:
        own = ""
    left = []
    innermost = root / "sys/fs/cgroup" / own
    for group in (innermost, *innermost.parents):
        try:
            limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            left.append(max(0, limit - used + int(stat["inactive_file"])))  # the page cache can be reclaimed
        except (OSError, ValueError, LookupError):  # no such group, or no limit ("max")
            continue
    return left
