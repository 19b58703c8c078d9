"""Serves the page until Ctrl-C."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable

import uvicorn

from fedl2g.errors import SettingError
from fedl2g.files import reason_of
from fedl2g.interrupts import orderly_end
from fedl2g.watch.follower import Follower
from fedl2g.watch.server import application

HOST = "127.0.0.1"


class PageServer:
    """The page on a port of this machine; its address holds the token without which nothing is shown."""

    def __init__(self, follower: Follower, port: int = 0) -> None:
        self._socket = _listening(port)
        self.port: int = self._socket.getsockname()[1]
        token = secrets.token_urlsafe(24)
        self.address = f"http://{HOST}:{self.port}/?token={token}"
        app = application(follower, token, lambda: self._server.should_exit)
        config = uvicorn.Config(
            app, log_level="critical", access_log=False, server_header=False, ws="none", timeout_graceful_shutdown=2
        )
        self._server = uvicorn.Server(config)

    def stop(self) -> None:
        """End the server; returns at once."""
        self._server.should_exit = True

    def serve(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop` or Ctrl-C; `ready` is called as soon as the port answers."""
        # In a thread, where uvicorn leaves signals alone: Ctrl-C is handled as in every other command. The thread is
        # not joined at the end: it may still be drawing a page, of which nothing is lost.
        thread = threading.Thread(target=self._server.run, args=([self._socket],), name="page", daemon=True)
        with orderly_end(lambda: "the page ends", self.stop):
            thread.start()
            ready()
            while thread.is_alive() and not self._server.should_exit:
                thread.join(0.05)


def _listening(port: int) -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((HOST, port))
        found.listen()
    except OSError as error:
        found.close()
        raise SettingError(
            f"--port: {port} cannot be used ({reason_of(error)}); expected a free port; leave --port out for any"
        ) from error
    return found
