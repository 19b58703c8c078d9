"""Things by name: the built-in ones, those of installed packages (entry points) and those a user registers.

Nothing is imported before it is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Generic, TypeVar, cast

from fedl2g.errors import SettingError, nearest
from fedl2g.references import is_reference, load_reference

T = TypeVar("T")


class Registry(Generic[T]):
    """The things of one kind. `built_in` says which module registers each when it is imported.

    An installed package adds its own through an entry point of the group `fedl2g.GROUP`, whose module registers it.
    """

    def __init__(self, kind: str, group: str, built_in: Mapping[str, str]) -> None:
        self.kind = kind
        self.group = f"fedl2g.{group}"
        self._built_in = built_in
        self._registered: dict[str, tuple[str, T]] = {}  # name -> where it was made, and the thing

    def register(self, name: str, thing: T, home: str) -> None:
        """Make a thing known by its name; `home` is the qualified name of what it is made of.

        The same home may register again (a module that is imported anew); another one may not take the name.
        """
        if is_reference(name) or not name or set(name) & set(",:+ "):
            raise SettingError(f"{self.kind} {name!r}: a name may not hold commas, colons, plus signs or spaces")
        known = self._registered.get(name)
        module = home.partition(":")[0]
        if known is not None and known[0].partition(":")[2] != home.partition(":")[2]:
            raise SettingError(f"{self.kind} {name!r}: is registered already; choose another name")
        if known is None and name in self._built_in and module != self._built_in[name]:
            raise SettingError(f"{self.kind} {name!r}: is built in; choose another name")
        self._registered[name] = (home, thing)

    def names(self) -> tuple[str, ...]:
        """Every name that can be given now."""
        installed = sorted(point.name for point in entry_points(group=self.group))
        return tuple(dict.fromkeys([*self._built_in, *sorted(self._registered), *installed]))

    def get(self, name: str) -> T:
        """The thing of that name; an unknown name is an error that says the nearest known one."""
        if is_reference(name):
            return cast(T, load_reference(name))
        if name not in self._registered:
            if name in self._built_in:
                importlib.import_module(self._built_in[name])
            else:
                for point in entry_points(group=self.group, name=name):
                    point.load()
        if name not in self._registered:
            known = self.names()
            raise SettingError(
                f"{self.kind}: {name!r} is not known; choose one of {', '.join(known)}.{nearest(name, known)}"
            )
        return self._registered[name][1]
