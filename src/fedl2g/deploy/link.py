"""The server's connection to its SuperLink: Flower retries a call for ever, here each call has a time limit."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

import httpx
from flwr.app import Message

from fedl2g.engines.flower.nodes import MessageGrid, NodeView
from fedl2g.errors import RunError


@dataclass(frozen=True)
class LimitedGrid:
    """A grid whose calls raise RunError if the SuperLink does not answer for this many seconds."""

    grid: MessageGrid
    seconds: float

    def get_nodes(self) -> list[NodeView]:
        with self._limit():
            return list(self.grid.get_nodes())

    def push_messages(self, messages: Iterable[Message]) -> list[str | None]:
        with self._limit():
            return list(self.grid.push_messages(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        with self._limit():
            return list(self.grid.pull_messages(message_ids))

    @contextmanager
    def _limit(self) -> Iterator[None]:
        """Interrupt the block by an alarm, which only the main thread can get; Flower runs an app in it."""

        def lost(number: int, frame: FrameType | None) -> NoReturn:
            raise _lost(f"no answer for {self.seconds:.0f} s")

        alarmed = threading.current_thread() is threading.main_thread()
        if alarmed:
            before = signal.signal(signal.SIGALRM, lost)
            signal.setitimer(signal.ITIMER_REAL, self.seconds)
        try:
            yield
        except httpx.TransportError as error:
            raise _lost(str(error)) from error
        finally:
            if alarmed:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)


def _lost(reason: str) -> RunError:
    return RunError(
        f"SuperLink: could not be reached ({reason}); the last checkpoint is intact; start the SuperLink, then the run "
        "again"
    )
