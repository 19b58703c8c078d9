"""The names of Flower that its reference does not list: all of them are here, and all are tried before a run starts.

Flower's reference documents `flwr.app`, `flwr.clientapp` and `flwr.serverapp`. None of the names below has a leading
underscore, but a release may change them without notice.
"""

from __future__ import annotations

from flwr.supercore.task_identity import TaskIdentity


def take_identity(*, task: int = 1, run: int = 1, node: int = 1) -> None:
    """Say for which task this process works: Flower's messages cannot be made without."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task, run, node
