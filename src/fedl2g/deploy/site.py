"""`fedl2g deploy site`: joins a federation with this site's SuperNode, and answers with this site's own package.

Three processes: Flower's SuperNode, which holds the connection to the coordinator and loads no app; this one, which
takes its messages; and one that trains (`trainer`). If the SuperNode ends, all end; if the trainer dies or takes too
long, it is started again.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import httpx
from flwr.app import Error, Message, RecordDict

from fedl2g.deploy.children import Child, start_child
from fedl2g.deploy.fleet import why_not_joined
from fedl2g.deploy.health import pulse_file
from fedl2g.deploy.package import check_package
from fedl2g.deploy.runtime import MessageLost, Runtime, Task
from fedl2g.deploy.site_file import SiteFile, read_site
from fedl2g.deploy.site_log import log_to_stderr
from fedl2g.engines.flower.identity import AWAKE, Disclosed, pack_identity, pack_refusal
from fedl2g.engines.flower.records import pack_records, unpack_records, unwrap, wrap
from fedl2g.engines.flower.strict import shown
from fedl2g.errors import PayloadError, RunError, SettingError
from fedl2g.files import reason_of

_log = logging.getLogger(__name__)
_HOST = "127.0.0.1"
_POLL_SECONDS = 0.25
_PULSE_SECONDS = 10.0
_BUSY_POLL_SECONDS = 0.05  # shortly after a message: the next one of a quick round may follow
_BUSY_SECONDS = 10.0
_FAILED = 0  # Flower's code of an unknown error: the coordinator asks again


class TrainerLost(Exception):
    """The process that trains died."""


class Trainer:
    """The process that trains, started again after its death."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        arguments = (str(theirs.fileno()), str(self._path.resolve()))
        self._child = start_child("fedl2g.deploy.trainer", *arguments, env={}, pass_fds=[theirs.fileno()])
        theirs.close()
        self._connection = Connection(ours.detach())
        self._ready = False

    def answer(self, kind: str, records: RecordDict, seconds: float, wanted: Callable[[], bool]) -> RecordDict:
        """Its answer to a request; TimeoutError after so many seconds, TrainerLost if it died or is not wanted."""
        try:
            if not self._ready:  # it imports torch, which is not counted
                self._receive(float("inf"), wanted)
                self._ready = True
            self._connection.send_bytes(kind.encode())
            self._connection.send_bytes(pack_records(records))
            return unpack_records(self._receive(seconds, wanted))
        except TimeoutError:
            self._replace()
            raise
        except (EOFError, OSError) as error:
            raise TrainerLost(f"the process that trains died: {self._replace()}") from error

    def _replace(self) -> str:
        """Start another process; returns how the one before ended."""
        self.end()
        how = self._child.how_it_ended()
        self._start()
        return how

    def _receive(self, seconds: float, wanted: Callable[[], bool]) -> bytes:
        end = time.monotonic() + seconds
        while not self._connection.poll(_POLL_SECONDS):
            if not wanted():
                raise EOFError
            if time.monotonic() > end:
                raise TimeoutError
        return self._connection.recv_bytes()

    def end(self) -> None:
        """End the process at once: what it has stored is complete, and a repeated request trains again."""
        self._connection.close()
        self._child.kill()


class Site:
    """Takes the messages of one SuperNode and answers them."""

    def __init__(self, file: SiteFile, supernode: Child, trainer: Trainer, messages: Runtime) -> None:
        self._file = file
        self._supernode = supernode
        self._trainer = trainer
        self._messages = messages
        self._pulse = pulse_file(file)
        self._last_pulse = -_PULSE_SECONDS

    def serve(self) -> None:
        """Answer messages until the SuperNode has ended; raises MessageLost if it must be started again."""
        last = float("-inf")
        while self._runs():
            task = self._next()
            if task is None:
                time.sleep(_BUSY_POLL_SECONDS if time.monotonic() - last < _BUSY_SECONDS else _POLL_SECONDS)
            else:
                self._finish(task)
                last = time.monotonic()

    def _runs(self) -> bool:
        """Whether the SuperNode runs; also leaves a sign of life for `fedl2g deploy health`."""
        if time.monotonic() - self._last_pulse >= _PULSE_SECONDS:
            self._last_pulse = time.monotonic()
            with suppress(OSError):
                self._pulse.touch()
        return self._supernode.exit_code is None

    def _next(self) -> Task | None:
        try:
            return self._messages.take()
        except MessageLost:
            raise
        except httpx.TransportError:  # the SuperNode is starting, or ending
            return None
        except Exception as error:  # whatever a malformed message raises in Flower: the SuperNode reports an error
            _log.warning("a message cannot be read: %s", shown(repr(error)))
            return None

    def _finish(self, task: Task) -> None:
        kind, started = task.message.metadata.message_type, time.monotonic()
        try:
            with task.alive():
                task.answer(self._answer(task.message))
            if kind != AWAKE:
                _log.info("%s: answered after %.1f s", shown(kind), time.monotonic() - started)
        except httpx.HTTPError as error:
            _log.warning("%s: the answer did not reach the SuperNode: %s", shown(kind), error)
        finally:
            task.close()

    def _answer(self, message: Message) -> RecordDict | Error:
        kind, limits = message.metadata.message_type, self._file.limits
        if not message.has_content():
            return pack_refusal(PayloadError("message: has no content"))
        if kind in ("query", AWAKE):
            return pack_identity(self._file.client_id, disclosed_by(self._file))
        try:
            return wrap(self._trainer.answer(kind, unwrap(message.content), limits.seconds, self._runs))
        except PayloadError as error:
            _log.warning("refused: %s", error)
            return pack_refusal(error)
        except TimeoutError:
            refusal = limits.too_slow()
            _log.warning("refused: %s", refusal)
            return pack_refusal(refusal)
        except TrainerLost as error:
            _log.warning("%s: %s", shown(kind), error)
            return Error(_FAILED, str(error))


def disclosed_by(file: SiteFile) -> Disclosed:
    """What a site's file allows the coordinator's records to say."""
    return Disclosed(file.model if file.tell.network else None, file.tell.samples)


def run_site(path: Path) -> None:
    """Join the federation; raises RunError when the SuperNode has ended."""
    log_to_stderr()
    file = read_site(path, trust=True)  # the institution itself starts its site with this file
    _log.info(check_package(file.package, path))
    port, secret, home = _free_port(), secrets.token_bytes(32), file.path("flwr")
    address, authority, key = file.link
    secret_file = home / "runtime-secret"
    _write_secret(secret_file, secret)
    arguments = (
        "--superlink", address, "--root-certificates", str(authority), "--auth-supernode-private-key", str(key),
        "--isolation", "process", "--host", _HOST, "--port", str(port),
        "--superexec-auth-secret-file", str(secret_file),
    )  # fmt: skip
    environment = {"FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0"}
    trainer = Trainer(path)
    try:
        again = True
        while again:
            supernode = start_child("fedl2g.deploy.supernode", *arguments, env=environment)
            try:
                Site(file, supernode, trainer, Runtime(f"{_HOST}:{port}", secret)).serve()
                again = False
            except MessageLost:
                _log.warning("the SuperNode lost a message, as it does when a run ends meanwhile; starting it again")
            finally:
                supernode.end()
    finally:
        trainer.end()
        secret_file.unlink(missing_ok=True)
    how = supernode.how_it_ended()
    raise RunError(f"SuperNode: ended with {how}: {why_not_joined(address, authority, key)}; start the site again")


def _write_secret(path: Path, secret: bytes) -> None:
    """Write the secret that lets this process alone take the SuperNode's messages, readable only by this user."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(secret)
    except OSError as error:
        raise SettingError(f"{path}: cannot be written ({reason_of(error)}); check the site's folder") from error


def _free_port() -> int:
    """A port of the loopback interface, for the SuperNode's Runtime API."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])
