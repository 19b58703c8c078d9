"""The names of Flower that its reference does not list; they are imported only here.

Flower's reference documents `flwr.app`, `flwr.clientapp` and `flwr.serverapp`. None of the names below begins with an
underscore, but a release may change them. `require_flower` imports this module before a run or a site starts.
"""

from __future__ import annotations

from flwr.common.constant import SubStatus
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

__all__ = [
    "AcquireTaskRequest",
    "ActivateNodeRequest",
    "ApiErrorCode",
    "FleetHttpClient",
    "FlowerError",
    "NodeAuthHttpInterceptor",
    "RuntimeHttpClient",
    "RuntimeTokenHttpInterceptor",
    "RuntimeVersionHttpInterceptor",
    "SendTaskHeartbeatRequest",
    "SubStatus",
    "SuperExecAuthHttpInterceptor",
    "TaskType",
    "public_key_to_bytes",
    "pull_task_input",
    "push_message",
    "push_task_output",
    "take_identity",
]


def take_identity(*, task: int = 1, run: int = 1, node: int = 1) -> None:
    """Set the task of this process, without which Flower's messages cannot be created."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task, run, node
