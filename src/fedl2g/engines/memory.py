"""How much memory the clients of a host may take."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from fedl2g.experiment import Experiment
from fedl2g.learning.devices import resolve_device


def memory_budget(experiment: Experiment, device: torch.device, hosts: int) -> int:
    """Bytes of clients that each of the hosts on this machine may keep; by default half of what is free."""
    megabytes = experiment.execution.memory_mb
    if megabytes is not None:
        return megabytes * 2**20 // hosts
    if device.type == "cuda":  # there the networks live, with those of the workers that share it
        sharing = [resolve_device(experiment.device, worker) for worker in range(hosts)].count(device)
        return torch.cuda.mem_get_info(device)[0] // 2 // max(1, sharing)
    return available_bytes() // 2 // hosts


def available_bytes(root: Path = Path("/")) -> int:
    """Memory that processes could still take: on this machine, and in the control group (container) they run in."""
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
    """What is left under the limits of this process's control group and of those around it (cgroup v2)."""
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
            left.append(max(0, limit - used + int(stat["inactive_file"])))  # the cache of files makes room
        except (OSError, ValueError, LookupError):  # no such group, or no limit ("max")
            continue
    return left
