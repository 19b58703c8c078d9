"""The tasks of a site's SuperNode, taken from its Runtime API and answered by this package.

A SuperNode with `--isolation process` loads no app: it hands out messages at its Runtime API and waits for answers.
Usually Flower's `flwr-clientapp` takes them, which installs and imports the app that the coordinator sent. Here that
app is dropped unread, and this package answers the message. This is the only module that uses Flower's Runtime API.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from flwr.app import Error, Message, RecordDict

from fedl2g.engines.flower.internals import (
    AcquireTaskRequest,
    RuntimeHttpClient,
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SendTaskHeartbeatRequest,
    SubStatus,
    SuperExecAuthHttpInterceptor,
    TaskType,
    pull_task_input,
    push_message,
    push_task_output,
)

_log = logging.getLogger(__name__)
_ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})
_HEARTBEAT_SECONDS = 10.0  # a SuperNode gives a task up after 30 s without one, and answers with an error itself


class MessageLost(Exception):
    """The SuperNode announced a message and gave it up: its run ended before the message was complete.

    From then on the SuperNode sends each answer only after the next message has come: it must be started again.
    """


class Runtime:
    """The Runtime API of this site's SuperNode; taking tasks needs the secret."""

    def __init__(self, address: str, secret: bytes) -> None:
        self._address = address
        authenticated = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=_ACQUIRE)
        self._client = _client(address, RuntimeVersionHttpInterceptor(component_name="SuperExec"), authenticated)

    def take(self) -> Task | None:
        """The next message, or None; raises MessageLost, and httpx.HTTPError while the SuperNode does not answer."""
        found = self._client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        return Task(self._address, found.token) if found.HasField("task") and found.token else None


class Task:
    """One message to this site, and the connection for its answer."""

    def __init__(self, address: str, token: str) -> None:
        version = RuntimeVersionHttpInterceptor(component_name="flwr-clientapp")
        self._client = _client(address, version, RuntimeTokenHttpInterceptor(token))
        try:
            self.message, self._context, _, _ = pull_task_input(self._client)  # dropped: the run, and its app
        except httpx.HTTPStatusError as error:
            raise MessageLost from error

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Tell the SuperNode inside the block that the message is being worked on."""
        done = threading.Event()
        beating = threading.Thread(target=self._beat, args=(done,), name="heartbeat", daemon=True)
        beating.start()
        try:
            yield
        finally:
            done.set()
            beating.join()

    def _beat(self, done: threading.Event) -> None:
        while not done.is_set():
            try:
                self._client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
            except httpx.HTTPError as error:
                _log.warning("the SuperNode did not take a heartbeat: %s", error)
            done.wait(_HEARTBEAT_SECONDS)

    def answer(self, content: RecordDict | Error) -> None:
        """Send the answer."""
        push_message(self._client, Message(content, reply_to=self.message), self._context)
        push_task_output(self._client, self._context, SubStatus.COMPLETED, "")

    def close(self) -> None:
        """End the connection."""
        self._client.close()


def _client(address: str, *interceptors: object) -> RuntimeHttpClient:
    return RuntimeHttpClient.from_server_address(address, True, None, list(interceptors))  # type: ignore[arg-type]
