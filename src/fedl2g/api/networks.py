"""The user's networks as settings: names, references, classes, functions and modules."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from fedl2g import session
from fedl2g.api.fingerprint import fingerprint
from fedl2g.errors import SettingError, kind_of


def models_setting(models: Any) -> str:
    """The value of the setting `models` for one network or several.

    A network is a name (`cnn4`, a group, `package.module:function`), a class or function that returns a new network, or
    a network itself, of which each client gets a copy with the same initial weights.
    """
    several = [models] if isinstance(models, str | nn.Module) or not isinstance(models, Iterable) else list(models)
    return ",".join(_name(network) for network in several)


def _name(network: Any) -> str:
    if isinstance(network, str):
        return network
    if isinstance(network, nn.Module):
        _require_weights(network)
        kept = copy.deepcopy(network)  # as it is now: the caller may go on training it
        return session.keep(f"{type(network).__name__}_{fingerprint(network)}", lambda: copy.deepcopy(kept))
    if not callable(network):
        raise SettingError(
            f"models: {kind_of(network)} is not a network; expected a name, a torch module, or a class or "
            "function that returns one"
        )
    module, name = str(getattr(network, "__module__", "")), str(getattr(network, "__qualname__", ""))
    if module not in ("", "__main__") and name.isidentifier():
        return f"{module}:{name}"
    readable = "".join(letter if letter.isalnum() else "_" for letter in name.rpartition(".")[2])
    readable = readable.strip("_") or type(network).__name__
    return session.keep(f"{readable}_{fingerprint(network)}", network)


def _require_weights(network: nn.Module) -> None:
    if any(is_lazy(tensor) for tensor in (*network.parameters(), *network.buffers())):
        raise SettingError(
            f"models: {type(network).__name__} has lazy layers without weights yet; call it once with images, or give "
            "its class or a function that returns it"
        )
