"""Registries of named objects: built in, from installed packages (entry points), or registered by the user.

Nothing is imported before it is used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from fedl2g.errors import SettingError, choices
from fedl2g.references import is_reference, load_reference

if TYPE_CHECKING:
    from fedl2g.engines.base import OpenEngine
    from fedl2g.round.rules import Rule
    from fedl2g.round.sampler import Sampler

T = TypeVar("T")


class Registry(Generic[T]):
    """The objects of one kind. `built_in` maps each built-in name to the module that registers it on import.

    An installed package adds objects through entry points of the group `fedl2g.GROUP`, whose modules register them.
    """

    def __init__(self, kind: str, group: str, built_in: Mapping[str, str]) -> None:
        self.kind = kind
        self.group = f"fedl2g.{group}"
        self._built_in = built_in
        self._registered: dict[str, tuple[str, T]] = {}  # name -> (qualified name of its class or function, the object)

    def register(self, name: str, thing: T, made_of: type | Callable[..., object]) -> None:
        """Register an object under a name; `made_of` is its class or function, which identifies the owner of the name.

        The same class or function may register again (its module was reloaded); another may not take the name.
        """
        if not name or set(name) & set(",:+ "):
            raise SettingError(f"{self.kind}: {name!r} cannot be a name; expected no comma, colon, plus sign or space")
        known = self._registered.get(name)
        if known is not None and known[0] != made_of.__qualname__:
            raise SettingError(f"{self.kind}: {name!r} is registered already; choose another name")
        if known is None and name in self._built_in and made_of.__module__ != self._built_in[name]:
            raise SettingError(f"{self.kind}: {name!r} is built in; choose another name")
        self._registered[name] = (made_of.__qualname__, thing)

    def names(self) -> tuple[str, ...]:
        """All available names."""
        installed = sorted(point.name for point in entry_points(group=self.group))
        return tuple(dict.fromkeys([*self._built_in, *sorted(self._registered), *installed]))

    def check(self, name: str) -> str:
        """Return the name if it is available; the error for an unknown one suggests the closest. Imports nothing."""
        known = name in self._built_in or name in self._registered or is_reference(name)
        if not known and name not in (names := self.names()):  # last, since it scans all installed packages
            raise SettingError(f"{self.kind}: {name!r} is not known; {choices(name, names)}")
        return name

    def get(self, name: str) -> T:
        """Look up an object; the error for an unknown name suggests the closest known one."""
        if is_reference(name):
            return cast(T, load_reference(name))
        if name not in self._registered:
            self.check(name)
            if name in self._built_in:
                importlib.import_module(self._built_in[name])
            else:
                self._load_installed(name)
        if name not in self._registered:
            raise SettingError(
                f"{self.kind}: {name!r} was not registered by the module that should register it; correct that module"
            )
        return self._registered[name][1]

    def _load_installed(self, name: str) -> None:
        for point in entry_points(group=self.group, name=name):
            try:
                point.load()
            except Exception as error:  # a third-party package may fail to import in any way
                raise SettingError(
                    f"{self.kind}: {name!r} cannot be imported from {point.value} ({type(error).__name__}: {error}); "
                    "update or remove that package"
                ) from error


engines: Registry[OpenEngine] = Registry(
    "execution.engine",
    "engines",
    {
        "inline": "fedl2g.engines.inline",
        "workers": "fedl2g.engines.workers",
        "flower": "fedl2g.engines.flower",
    },
)
samplers: Registry[type[Sampler]] = Registry(
    "sampler", "samplers", dict.fromkeys(("uniform", "poisson"), "fedl2g.round.sampler")
)
rules: Registry[Rule] = Registry(
    "aggregation.rule",
    "rules",
    dict.fromkeys(("mean", "median", "trimmed_mean", "norm_clip"), "fedl2g.round.rules"),
)
