"""Selection and synchronization of the devices that clients compute on."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fedl2g.errors import SettingError


def resolve_device(name: str, worker: int = 0) -> torch.device:
    """The device for a host; several devices ("cuda" alone means all GPUs) are assigned to workers round-robin."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if name == "cuda" and torch.cuda.device_count() > 1:
        name = ",".join(f"cuda:{index}" for index in range(torch.cuda.device_count()))
    devices = [torch.device(part) for part in name.split(",")]
    for device in devices:
        if device.type != "cpu" and (device.index or 0) >= torch.get_device_module(device).device_count():
            raise SettingError(
                f"device: this machine has no {str(device)!r}; expected an available device; use --device cpu or auto"
            )
    return devices[worker % len(devices)]


def synchronizer(device: torch.device) -> Callable[[], None] | None:
    """A function that blocks until the device has finished all queued work; None where work is synchronous."""
    if device.type in ("cpu", "meta"):
        return None
    module = torch.get_device_module(device)
    if device.type == "mps":
        return module.synchronize  # type: ignore[no-any-return]  # takes no device argument
    return lambda: module.synchronize(device)
