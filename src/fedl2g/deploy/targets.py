"""What starts the processes of a federation after a reboot."""

from __future__ import annotations

from typing import Literal, get_args

Target = Literal["systemd", "compose", "k8s"]
TARGETS: tuple[Target, ...] = get_args(Target)
