"""The user's networks as settings: names, references, classes, functions and modules."""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from fedl2g import session
from fedl2g.errors import SettingError, kind_of

_PREFIX_OF_DIGEST = 12


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
        return session.keep(f"{type(network).__name__}_{_digest_of_network(network)}", lambda: copy.deepcopy(network))
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
    return session.keep(f"{readable}_{_digest_of_source(network)}", network)


def _digest_of_network(network: nn.Module) -> str:
    if any(is_lazy(tensor) for tensor in (*network.parameters(), *network.buffers())):
        raise SettingError(
            f"models: {type(network).__name__} has lazy layers without weights yet; call it once with images, or give "
            "its class or a function that returns it"
        )
    digest = hashlib.sha256(repr(network).encode())
    for name, tensor in network.state_dict().items():
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:_PREFIX_OF_DIGEST]


def _digest_of_source(factory: Any) -> str:
    """A digest of the source, so that an edited class is another network; of the object if there is no source."""
    try:
        text = inspect.getsource(factory)
    except (OSError, TypeError):
        text = repr(factory)
    return hashlib.sha256(text.encode()).hexdigest()[:_PREFIX_OF_DIGEST]
