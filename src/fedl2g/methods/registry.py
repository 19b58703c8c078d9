"""Methods by name: the built-in ones, those of installed packages (entry points) and those a user registers.

Nothing here imports torch: a method's module is imported when the method is asked for.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from fedl2g.errors import SettingError, nearest

if TYPE_CHECKING:
    from fedl2g.methods.base import ClientHalf, ServerHalf
    from fedl2g.methods.options import Options

ENTRY_POINT_GROUP = "fedl2g.methods"

_BUILT_IN = {
    "local": "local",
    "lg-fedavg": "lg_fedavg",
    "fedgh": "fedgh",
    "fml": "fml",
    "fedkd": "fedkd",
    "fedmrl": "fedmrl",
    "feddistill": "feddistill",
    "fedproto": "fedproto",
    "fedl2g-l": "fedl2g",
    "fedl2g-f": "fedl2g",
}
_registered: dict[str, Method] = {}


@dataclass(frozen=True)
class Method:
    """A method: its options and its two halves."""

    name: str
    options: type[Options]
    server: type[ServerHalf[Any]]
    client: type[ClientHalf[Any]]
    shares_head: bool = False  # needs the same head on every client

    @property
    def summary(self) -> str:
        """The first line of the options' docstring."""
        return (self.options.__doc__ or "").strip().partition("\n")[0]


def register_method(
    name: str,
    *,
    options: type[Options],
    server: type[ServerHalf[Any]],
    client: type[ClientHalf[Any]],
    shares_head: bool = False,
) -> Method:
    """Make a method known by its name, for experiments and the command line."""
    known = _registered.get(name)
    if known is not None and known.client.__qualname__ != client.__qualname__:
        raise SettingError(f"a method named {name!r} is registered already; choose another name")
    if known is None and name in _BUILT_IN and client.__module__ != f"{__package__}.{_BUILT_IN[name]}":
        raise SettingError(f"{name!r} is a built-in method; choose another name")
    _registered[name] = Method(name, options, server, client, shares_head)
    return _registered[name]


def method_names() -> tuple[str, ...]:
    """Every method that can be named now."""
    installed = {point.name for point in entry_points(group=ENTRY_POINT_GROUP)}
    return tuple(dict.fromkeys([*_BUILT_IN, *sorted(_registered), *sorted(installed)]))


def get_method(name: str) -> Method:
    """The method of that name; an unknown name is an error that says the nearest known one."""
    if name not in _registered:
        if name in _BUILT_IN:
            importlib.import_module(f"{__package__}.{_BUILT_IN[name]}")
        else:
            for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
                point.load()
    if name not in _registered:
        known = method_names()
        raise SettingError(
            f"method: {name!r} is not a known method; choose one of {', '.join(known)}.{nearest(name, known)}"
        )
    return _registered[name]
