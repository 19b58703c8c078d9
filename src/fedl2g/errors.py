"""The exception hierarchy; each message is one sentence: `what: what is wrong; what is expected; what to do`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LONGEST = 100  # characters shown of a rejected value


class FedL2GError(Exception):
    """Base of all errors; the command line prints the message and exits with `exit_code`."""

    exit_code = 1


class SettingError(FedL2GError):
    """A setting, argument or file given by the user is not valid."""

    exit_code = 2


class DataError(SettingError):
    """A dataset cannot be found, read or partitioned."""


class PayloadError(FedL2GError):
    """A received payload or message does not have the expected form."""


class RunError(FedL2GError):
    """A run directory or checkpoint cannot be used (foreign, corrupted, locked, disk full)."""

    exit_code = 2


class Diverged(FedL2GError):
    """A loss or a guiding vector became NaN or infinite: continuing the run would be meaningless."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown name inside a sentence, "did you mean 'dirichlet'? "; "" if nothing is close."""
    close = _closest(name, known)
    return f"did you mean {close!r}? " if close else ""


def choices(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: "did you mean 'dirichlet'? known: iid, dirichlet"."""
    names = list(known)
    return f"{suggestion(name, names)}known: {', '.join(names) or 'none'}"


def shown(value: object) -> str:
    """A rejected value inside a sentence: on one line, short, and of an array only its shape."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape:
        return f"{_article(type(value).__name__)} of shape {tuple(map(int, shape))}"
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def kind_of(value: object) -> str:
    """What a rejected value is, inside a sentence: "a list", "an array"."""
    return "nothing" if value is None else _article(type(value).__name__)


def _article(name: str) -> str:
    name = {"ndarray": "array"}.get(name, name)
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def count(number: int, thing: str) -> str:
    """A number of things: "1 run", "2 runs"."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _closest(name: str, known: Iterable[str]) -> str | None:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return close[0] if close else None
