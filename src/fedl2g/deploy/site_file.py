"""A site's file: the settings of one institution, written by that institution.

Python code that it names is imported only if the file is trusted: by the institution, which starts its site with it, or
by a user with --trust.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedl2g.deploy.coordinator import read_toml
from fedl2g.deploy.limits import Limits
from fedl2g.deploy.package import PackageTable
from fedl2g.errors import SettingError, choices
from fedl2g.experiment.words import one_sentence
from fedl2g.references import references_in, require_trust

SITE_FILE = "site.toml"


def _hyphens(name: str) -> str:
    return name.replace("_", "-")


class SuperLinkTable(BaseModel):
    """The table [superlink]: how this site reaches the coordinator."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=_hyphens)

    address: str = Field(pattern=r"^[^:/\s]+:\d+$", description="host:port")
    root_certificates: Path
    private_key: Path


class Tell(BaseModel):
    """The table [tell]: what the coordinator's records may say about this site besides its name."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    network: bool = True
    samples: bool = True


class SiteFile(BaseModel):
    """The settings of one site; paths are relative to the file's folder (see `path`)."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=_hyphens)

    folder: Path = Field(exclude=True)
    file: str = Field(SITE_FILE, exclude=True)  # its name in the folder
    client_id: int = Field(ge=0, lt=1_000_000)
    name: str
    model: str
    data: str
    label: str | None = None
    """The column of a table with the labels."""
    text: str | None = None
    """The columns with the texts, separated by commas."""
    split: Path | None = None
    code: Path = Path(".")
    store: Path = Path("store")
    device: str = "cpu"
    local_baseline: bool = False
    tell: Tell = Field(default_factory=Tell)
    limits: Limits = Field(default_factory=Limits)
    package: PackageTable | None = None
    superlink: SuperLinkTable | None = None

    def path(self, relative: Path | str) -> Path:
        """The absolute form of a path in the file."""
        return (self.folder / relative).resolve()

    @property
    def link(self) -> tuple[str, Path, Path]:
        """The SuperLink's address, the authority of its certificate, and this site's private key."""
        if self.superlink is None:
            raise SettingError(
                f"{self.folder / self.file}: superlink: the table is missing; it names the coordinator's address and "
                "this site's key"
            )
        link = self.superlink
        return link.address, self.path(link.root_certificates), self.path(link.private_key)

    def use_code(self) -> None:
        """Put the site's own code on the import path."""
        folder = str(self.path(self.code))
        if folder not in sys.path:
            sys.path.insert(0, folder)


_TABLES: dict[str, type[BaseModel]] = {
    "limits": Limits,
    "tell": Tell,
    "package": PackageTable,
    "superlink": SuperLinkTable,
}


def read_site(path: Path, *, trust: bool) -> SiteFile:
    """Read a site's file; refuse one that names code unless it is trusted."""
    table: dict[str, Any] = read_toml(path)
    require_trust(references_in({name: table.get(name, "") for name in ("model", "data")}), path, trust=trust)
    try:
        return SiteFile(**{**table, "folder": path.resolve().parent, "file": path.name})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            model = _TABLES.get(str(first["loc"][0]), SiteFile) if len(first["loc"]) > 1 else SiteFile
            known = [_hyphens(name) for name in model.model_fields if name not in ("folder", "file")]
            raise SettingError(f"{path}: {where}: unknown setting; {choices(str(first['loc'][-1]), known)}") from error
        raise SettingError(f"{path}: {one_sentence(error, SiteFile)}") from error


def key_file(path: Path) -> Path:
    """The private key of a site's folder or file; of any other path, the path itself."""
    site = path / SITE_FILE if (path / SITE_FILE).is_file() else path
    if site.suffix != ".toml":
        return path
    return read_site(site, trust=True).link[2]  # only its paths are used


def store_of(path: Path) -> Path | None:
    """The store of a site's folder or file; None if the path is neither. No code that the file names is imported."""
    site = path / SITE_FILE if (path / SITE_FILE).is_file() else path
    if not site.is_file() or site.suffix != ".toml":
        return None
    store = read_toml(site).get("store", "store")
    if not isinstance(store, str):
        raise SettingError(f"{site}: store: {store!r} is not text; expected the path of a folder")
    return site.parent / store
