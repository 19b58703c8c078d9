"""The installed package fedl2g, which alone runs at a site: its version and digest, pinned in the site's file."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from fedl2g.errors import SettingError
from fedl2g.files import reason_of, write_text
from fedl2g.version import __version__

_TABLE = re.compile(r"^\[package\]\n(?:(?!\[).*\n?)*", re.MULTILINE)


class PackageTable(BaseModel):
    """The table [package]: the one package whose code may run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: str
    digest: str = Field(pattern=r"^sha256:[0-9a-f]{64}$", description="what `fedl2g deploy pin` writes")


def installed_package() -> PackageTable:
    """The version of the package that is running, and a digest over the names and contents of all its files."""
    digest = hashlib.sha256()
    for name, file in sorted(_walk(files("fedl2g"), "")):
        data = file.read_bytes()
        digest.update(f"{name}\n{len(data)}\n".encode() + data)
    return PackageTable(version=__version__, digest=f"sha256:{digest.hexdigest()}")


def check_package(pinned: PackageTable | None, path: Path) -> str:
    """Refuse to run a package other than the pinned one; returns a sentence about it."""
    if pinned is None:
        raise SettingError(f"{path}: package: not pinned; check what is installed, then run `fedl2g deploy pin {path}`")
    installed = installed_package()
    if installed != pinned:
        raise SettingError(
            f"{path}: package: fedl2g {installed.version} ({_short(installed)}) is installed, but {pinned.version} "
            f"({_short(pinned)}) is pinned; install that one, or run `fedl2g deploy pin {path}` to accept this one"
        )
    return f"fedl2g {installed.version} ({_short(installed)}) is the pinned one"


def pin_package(path: Path) -> PackageTable:
    """Pin the installed package in a site's file, in place of an earlier one."""
    installed = installed_package()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{path}: cannot be read ({reason_of(error)}); check the path") from error
    rest = _TABLE.sub("", text).rstrip("\n")
    write_text(path, f"{rest}\n\n{pin_table(installed)}")
    return installed


def pin_table(package: PackageTable) -> str:
    """The lines of a site's file that pin a package."""
    return f'[package]\nversion = "{package.version}"\ndigest = "{package.digest}"\n'


def _walk(folder: Traversable, place: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        name = f"{place}/{entry.name}"
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _walk(entry, name)
        elif not entry.name.endswith(".pyc"):
            yield name, entry


def _short(package: PackageTable) -> str:
    return package.digest[:19]
