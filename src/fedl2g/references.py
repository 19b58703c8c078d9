"""References to user code (`package.module:name`), plugin files, and the trust check.

A reference in the user's own settings is imported directly. A reference in a file from elsewhere (a run directory, a
message) is imported only after `require_trust`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedl2g import session
from fedl2g.errors import SettingError

_IDENTIFIER = r"[^\W\d]\w*"
_INSTALLED = ("hf", "timm", "torchvision")  # prefixes of names in an installed package, which are not user code
_PATTERN = re.compile(
    rf"(?!({'|'.join(_INSTALLED)}):)(?P<module>{_IDENTIFIER}(\.{_IDENTIFIER})*):(?P<name>{_IDENTIFIER})(#(?P<attribute>{_IDENTIFIER}(\.{_IDENTIFIER})*))?"
)
_NEVER_CODE = frozenset({"partition", "label", "text", "ignore"})  # "file:parts" is a file; a column has any name
_plugins: list[str] = []


@dataclass(frozen=True)
class Reference:
    """A parsed "package.module:name#attribute"; `attribute` belongs to the object that calling `name` returns."""

    module: str
    name: str
    attribute: str | None = None


def is_reference(text: str) -> bool:
    """Whether a text has the form of a reference; nothing is imported."""
    return _PATTERN.fullmatch(text) is not None


def parse_reference(text: str) -> Reference:
    """Parse "package.module:name" or "package.module:name#attribute"."""
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise SettingError(f"{text!r}: not a reference to Python code; expected package.module:name")
    return Reference(match["module"], match["name"], match["attribute"])


def load_reference(text: str) -> Any:
    """Import the referenced object; modules in the current folder are found too.

    The caller must have made sure that the reference is trusted.
    """
    reference = parse_reference(text)
    if reference.module == session.MODULE:
        return session.find(reference.name)
    folder = os.getcwd()
    sys.path.append(folder)
    try:
        module = importlib.import_module(reference.module)
    except Exception as error:  # a user's module may fail to import in any way
        raise SettingError(
            f"{text}: {reference.module!r} cannot be imported ({type(error).__name__}: {error}); install it, start "
            "fedl2g in its folder, or put that folder on PYTHONPATH"
        ) from error
    finally:
        sys.path.remove(folder)
    try:
        return getattr(module, reference.name)
    except AttributeError as error:
        raise SettingError(f"{text}: {reference.module!r} has no {reference.name!r}; correct the name") from error


def references_in(settings: Mapping[str, Any]) -> list[str]:
    """All references anywhere in an experiment's settings: a superset of what may be imported. Imports nothing."""
    texts = (text for key, value in settings.items() if key not in _NEVER_CODE for text in _texts(value))
    return list(dict.fromkeys(text for text in texts if is_reference(text)))


def _texts(value: object) -> Iterator[str]:
    """All strings in a setting, from nested lists and tables too; comma-separated lists are split."""
    values = [value]
    for one in values:  # grows as tables and lists are opened
        if isinstance(one, str):
            yield from (text.strip() for text in one.split(","))
        elif isinstance(one, Mapping):
            values.extend(one.values())
        elif isinstance(one, Iterable) and not isinstance(one, bytes | bytearray):
            values.extend(one)


def require_trust(references: Iterable[str], source: Path | str, *, trust: bool) -> None:
    """Raise SettingError for references from a file, unless the user trusts it.

    Networks kept in this session need no trust: naming one imports nothing.
    """
    if not trust and (named := [name for name in references if not session.is_kept(name)]):
        raise SettingError(
            f"{source}: names code to import ({', '.join(named)}); such code is imported only if you trust it; if you "
            "do, add --trust (in Python: trust=True)"
        )


def load_plugin(name: str) -> None:
    """Import a plugin, a Python file (`my_method.py`) or a module (`my_package.methods`), once."""
    if name.endswith(".py"):
        path = Path(name).resolve()
        if not path.is_file():
            raise SettingError(f"--plugin: {name!r} does not exist; expected a Python file or the name of a module")
        name = str(path)
    if name in _plugins:
        return
    try:
        _import_file(Path(name)) if name.endswith(".py") else importlib.import_module(name)
    except SettingError:
        raise
    except Exception as error:
        raise SettingError(
            f"--plugin: {name!r} cannot be imported ({type(error).__name__}: {error}); correct it"
        ) from error
    _plugins.append(name)


def loaded_plugins() -> tuple[str, ...]:
    """The plugins imported so far, which the other processes of a run must import too."""
    return tuple(_plugins)


def _import_file(path: Path) -> None:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SettingError(f"--plugin: {str(path)!r} cannot be loaded; expected a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
