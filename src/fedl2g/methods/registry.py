"""The registry of methods (no torch here: a method's module is imported when the method is first used)."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedl2g.errors import SettingError
from fedl2g.registry import Registry

if TYPE_CHECKING:
    from fedl2g.methods.base import ClientHalf, ServerHalf, Traits
    from fedl2g.methods.options import Options

DEFAULT_METHOD = "fedl2g-f"
_MODULES = {
    "local": "local",
    "lg-fedavg": "lg_fedavg",
    "fedgh": "fedgh",
    "fml": "fml",
    "fedkd": "fedkd",
    "fedmrl": "fedmrl",
    "feddistill": "feddistill",
    "fedproto": "fedproto",
    "fedtgp": "fedtgp",
    "fedgen": "fedgen",
    "fedl2g-l": "fedl2g",
    "fedl2g-f": "fedl2g",
}


@dataclass(frozen=True)
class Method:
    """A method: its options, its traits and its two halves."""

    name: str
    options: type[Options]
    server: type[ServerHalf[Any]]
    client: type[ClientHalf[Any]]
    traits: Traits

    @property
    def summary(self) -> str:
        """The first line of the options' docstring."""
        return (self.options.__doc__ or "").strip().partition("\n")[0]

    @property
    def description(self) -> str:
        """The loss and the exchange: the docstring of the module that defines the client's half, or of that class."""
        own = sys.modules[self.client.__module__].__doc__ or self.client.__doc__
        return inspect.cleandoc(own or self.summary)

    @property
    def sends(self) -> str:
        """What leaves a client in a round, in one or two sentences."""
        kind = {
            "nothing": "Nothing.",
            "class vectors": f"Class vectors ({self.traits.vectors or 'of its own kind'}): at most one row per class.",
            "network": "The tensors of a small shared network."
            if self.traits.auxiliary_network
            else "Tensors of a network.",
        }[self.traits.uploads]
        packed = " They are compressed." * self.traits.compressed
        measured = f" Besides its loss it reports: {', '.join(self.traits.metrics)}." if self.traits.metrics else ""
        return f"{kind}{packed}{measured} {self.traits.communication_note}".strip()

    def warmup_rounds(self, options: Options) -> int:
        """The first rounds of a run, in which no client trains; 0 for a method without a warm-up."""
        return int(dict(options)["warmup_rounds"]) if self.traits.warm_up else 0

    def named_auxiliary(self, options: Options) -> str | None:
        """The auxiliary network that the options name; None if they name none or the method has none."""
        return dict(options).get("auxiliary") if self.traits.auxiliary_network else None


methods: Registry[Method] = Registry(
    "method", "methods", {name: f"{__package__}.{module}" for name, module in _MODULES.items()}
)


def register_method(
    name: str,
    *,
    options: type[Options],
    server: type[ServerHalf[Any]],
    client: type[ClientHalf[Any]],
    traits: Traits | None = None,
) -> Method:
    """Register a method under a name, for experiments and the command line.

    The default traits are `raw_replies`: they work for every method, and refuse aggregation rules and privacy
    guarantees, which cannot be assumed to be compatible.
    """
    if traits is None:
        from fedl2g.methods.base import Traits

        traits = Traits(raw_replies=True)
    method = Method(name, options, server, client, traits)
    methods.register(name, method, client)
    return method


def method_names() -> tuple[str, ...]:
    """The names of all available methods."""
    return methods.names()


def get_method(name: str) -> Method:
    """Look up a method; the error for an unknown name suggests the closest known one."""
    method = methods.get(name)
    if not isinstance(method, Method):  # a reference may name anything
        raise SettingError(f"method: {name!r} is not a method; expected the return value of `register_method`")
    return method
