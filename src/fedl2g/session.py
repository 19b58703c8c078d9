"""Networks that exist only in this Python session: a module of references to them.

A notebook's classes and networks have no file that another process could import. `keep` puts them into this module, so
that `fedl2g.session:NAME` is a reference like any other, in this process alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NoReturn

from fedl2g.errors import SettingError

MODULE = __name__
_kept: set[str] = set()


def keep(name: str, factory: Any) -> str:
    """Keep an object for this session and return its reference."""
    globals()[name] = factory
    _kept.add(name)
    return f"{MODULE}:{name}"


def is_kept(reference: str) -> bool:
    """Whether a reference names an object of a session."""
    return reference.startswith(f"{MODULE}:")


def readable(references: Sequence[str]) -> tuple[str, ...]:
    """References for display: a network of this session by its bare name, unless two share it."""
    names = {one: one.partition(":")[2] for one in references if is_kept(one)}
    short = {one: name.rpartition("_")[0] for one, name in names.items()}
    used = Counter([*short.values(), *(one for one in set(references) if one not in names)])
    return tuple(one if one not in names else short[one] if used[short[one]] == 1 else names[one] for one in references)


def find(name: str) -> Any:
    """The object that was kept under a name; what else this module holds has no name here."""
    if name not in _kept:
        _not_here(name)
    return globals()[name]


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):  # Python and its tools ask modules for optional attributes
        raise AttributeError(f"module {MODULE!r} has no attribute {name!r}")
    _not_here(name)


def _not_here(name: str) -> NoReturn:
    raise SettingError(
        f"models: {name} was defined in another Python session; put it in a file such as my_models.py and give "
        f"models='my_models:NAME'"
    )
