"""A user's own Python files and modules: imported because the user names them, here and in every worker process."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

from fedl2g.errors import SettingError

_loaded: list[str] = []


def load_plugin(name: str) -> None:
    """Import a Python file (`my_method.py`) or module (`my_package.methods`), once."""
    if name.endswith(".py"):
        path = Path(name).resolve()
        if not path.is_file():
            raise SettingError(f"plugin {name!r}: there is no such file")
        name = str(path)
    if name in _loaded:
        return
    try:
        _import_file(Path(name)) if name.endswith(".py") else importlib.import_module(name)
    except SettingError:
        raise
    except Exception as error:
        raise SettingError(f"plugin {name!r} cannot be imported: {type(error).__name__}: {error}") from error
    _loaded.append(name)


def loaded_plugins() -> tuple[str, ...]:
    """What was imported, for a worker process to import too."""
    return tuple(_loaded)


def _import_file(path: Path) -> None:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SettingError(f"plugin {str(path)!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
