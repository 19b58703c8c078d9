"""What a network of a session is: a digest of its code and of the values that the code uses.

Two functions of one line have the same source, and so have two closures of one function or a class before and after a
global that it uses has changed. Networks told apart by their source alone would be taken for each other.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

_LENGTH = 12


def fingerprint(value: Any) -> str:
    """The same for what does the same, also after a notebook's cell was run again, or its kernel restarted."""
    return hashlib.sha256("\n".join(_parts(value, {})).encode(errors="surrogateescape")).hexdigest()[:_LENGTH]


def _parts(value: Any, seen: dict[int, int]) -> Iterator[str]:
    """What makes up a value, as texts; code that can be imported is its name."""
    if isinstance(value, FunctionType | type | CodeType | nn.Module | list | dict):  # what may lead back to itself
        if id(value) in seen:
            yield f"part {seen[id(value)]}"
            return
        seen[id(value)] = len(seen)
    yield f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, FunctionType | type) and _can_be_imported(value):
        yield f"{value.__module__}:{value.__qualname__}"
        return
    match value:
        case ModuleType():
            yield value.__name__
        case FunctionType():
            cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
            used = {name: value.__globals__[name] for name in _names(value.__code__) if name in value.__globals__}
            yield from _all(seen, value.__code__, value.__defaults__, value.__kwdefaults__, cells, used)
        case CodeType():
            yield value.co_code.hex()
            yield from _all(seen, value.co_names, value.co_freevars, value.co_consts)
        case MethodType():
            yield from _all(seen, value.__func__, value.__self__)
        case functools.partial():
            yield from _all(seen, value.func, value.args, value.keywords)
        case staticmethod() | classmethod():
            yield from _all(seen, value.__func__)
        case property():
            yield from _all(seen, value.fget, value.fset)
        case type():
            own = {name: part for name, part in vars(value).items() if not name.startswith("__") or callable(part)}
            yield from _all(seen, value.__qualname__, value.__bases__, own)
        case nn.Module():
            yield from _all(seen, type(value), vars(value))
        case torch.Tensor() if not is_lazy(value):
            numbers = value.detach().cpu()
            yield str(value.dtype)
            yield from _parts((numbers.double() if numbers.is_floating_point() else numbers).numpy(), seen)
        case np.ndarray() if value.dtype != object:
            yield f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
        case Mapping():
            yield from _all(seen, *value.keys(), *value.values())
        case set() | frozenset():
            yield from sorted(map(fingerprint, value))
        case list() | tuple():
            yield str(len(value))
            yield from _all(seen, *value)
        case _:
            yield repr(value)


def _all(seen: dict[int, int], *values: Any) -> Iterator[str]:
    for value in values:
        yield from _parts(value, seen)


def _can_be_imported(value: FunctionType | type) -> bool:
    """Whether other processes find it by its name; a notebook and the script that is started are `__main__`."""
    if value.__module__ == "__main__" or value.__module__ not in sys.modules:
        return False
    found: Any = sys.modules[value.__module__]
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is value


def _names(code: CodeType) -> Iterable[str]:
    """The names that code looks up in its globals, functions inside it included; in their order."""
    own = (step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    inner = (name for part in code.co_consts if isinstance(part, CodeType) for name in _names(part))
    return dict.fromkeys([*own, *inner])


def _is_filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:  # of a variable that is assigned later
        return False
    return True
