"""One line of a check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedl2g.errors import FedL2GError


@dataclass(frozen=True)
class Verdict:
    """The outcome of one check."""

    what: str
    good: bool
    detail: str

    @property
    def line(self) -> str:
        """The line to print."""
        return f"{'ok  ' if self.good else 'FAIL'}  {self.what}: {self.detail}"


def attempt(what: str, check: Callable[[], str]) -> Verdict:
    """Try one thing: what the check returns, or the reason it failed."""
    try:
        return Verdict(what, True, check())
    except (FedL2GError, OSError, ValueError, RuntimeError) as error:
        return Verdict(what, False, str(error) or type(error).__name__)
