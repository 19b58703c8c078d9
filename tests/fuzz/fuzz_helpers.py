"""Shared by the fuzz tests: what may happen to a malformed thing, and how much time and memory it may take."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable
from typing import Any, TypeVar

from fedl2g.errors import FedL2GError

T = TypeVar("T")
_MOST_SECONDS = 5.0  # of this process's own time, for one case
_MOST_MEMORY = 512 * 2**20  # growth of the process over a whole test


class Fuzz:
    """Runs cases: each is refused by a clear FedL2GError, or its result is sound by an independent judgement."""

    def __init__(self) -> None:
        self.cases = self.refused = 0
        self._memory = _resident()

    def __call__(self, case: Callable[[], T], sound: Callable[[T], bool], what: object = "") -> None:
        self.cases += 1
        started = time.process_time()
        try:
            result = case()
        except FedL2GError as error:
            self.refused += 1
            clear = len(str(error).strip()) > 10
        else:
            clear = True
            assert sound(result), f"silently accepted: {what!r:.2000}"
        assert clear, f"no clear sentence for {what!r:.500}"
        assert time.process_time() - started < _MOST_SECONDS, f"took too long: {what!r:.500}"

    def finish(self, cases: int, refused: float) -> None:
        """At least so many cases, of which at least this share was refused (else the test tests nothing)."""
        assert self.cases >= cases
        assert self.refused >= refused * self.cases, f"only {self.refused} of {self.cases} were refused"
        assert _resident() - self._memory < _MOST_MEMORY


def _resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def strange(draw: random.Random, depth: int = 0) -> Any:
    """A value of any JSON type, preferably at the edge of something."""
    kinds: list[Callable[[], Any]] = [
        lambda: draw.choice([0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**30, 10**400]),
        lambda: draw.choice([0.5, -0.0, 1e308, 1e-320, float("nan"), float("inf"), -float("inf")]),
        lambda: draw.choice(["", " ", "nan", "1", "\x00", "é\u202e", "../../etc/passwd", "a:b", "x" * 5000, "true"]),
        lambda: draw.choice([True, False]),
        lambda: None,
        lambda: [strange(draw, depth + 1) for _ in range(draw.randrange(4))] if depth < 3 else [],
        lambda: {draw.choice(["a", "0", "-1", "name", "clients"]): strange(draw, depth + 1)} if depth < 3 else {},
    ]
    return draw.choice(kinds)()


def spoiled_text(draw: random.Random, text: str) -> str:
    """Text with a few characters changed, lost, doubled or put in, or cut off, or nested deeply."""
    for _ in range(draw.randrange(1, 4)):
        at, other = draw.randrange(len(text) + 1), draw.randrange(len(text) + 1)
        how = draw.randrange(6)
        if how == 0:
            text = text[:at] + draw.choice('"[]{}=\\,:#\n\x00é0eE-.') + text[at:]
        elif how == 1:
            text = text[:at] + text[at + 1 :]
        elif how == 2:
            text = text[: min(at, other)] + text[max(at, other) :]
        elif how == 3:
            text = text[:at] + text[min(at, other) : max(at, other)] + text[at:]
        elif how == 4:
            text = text[:at]
        elif draw.random() < 0.05:
            text = text[:at] + draw.choice("[{") * 20_000 + text[at:]
        else:
            text = text[:at] + "9" * draw.choice([3, 20, 5000]) + text[at:] if draw.random() < 0.2 else text[::-1]
    return text


def replaced(draw: random.Random, values: Any) -> Any:
    """A copy of nested values with one part, anywhere, replaced, removed or added."""
    if isinstance(values, dict) and values and draw.random() < 0.8:
        key = draw.choice(sorted(values, key=str))
        action = draw.random()
        if action < 0.15:
            return {k: v for k, v in values.items() if k != key}
        if action < 0.25:
            return {**values, draw.choice(["extra", "", "0"]): strange(draw)}
        return {**values, key: replaced(draw, values[key])}
    if isinstance(values, list) and values and draw.random() < 0.7:
        at = draw.randrange(len(values))
        return [*values[:at], replaced(draw, values[at]), *values[at + 1 :]]
    return strange(draw)
