"""`fedl2g deploy health`: whether the coordinator's SuperLink answers, or a site is at work."""

from __future__ import annotations

import time
from pathlib import Path

from fedl2g.deploy.check_coordinator import EXPERIMENT, tls_version
from fedl2g.deploy.command import local_address
from fedl2g.deploy.coordinator import read_coordinator
from fedl2g.deploy.site_file import SITE_FILE, SiteFile, read_site
from fedl2g.errors import RunError, SettingError
from fedl2g.files import reason_of

PULSE = "pulse"
_SILENCE = 60.0  # seconds


def health(path: Path) -> str:
    """A sentence if all is well; RunError otherwise."""
    if (path / EXPERIMENT).is_file():
        return _coordinator(path)
    site = path / SITE_FILE if path.is_dir() else path
    if not site.is_file():
        raise SettingError(
            f"{path}: neither a coordinator's folder nor a site's; expected experiment.toml or site.toml"
        )
    return _site(read_site(site, trust=True))


def _coordinator(folder: Path) -> str:
    address = read_coordinator(folder / EXPERIMENT).federation.address
    if address is None:
        raise SettingError(f"{folder / EXPERIMENT}: federation.address: missing; expected the SuperLink's address")
    address = local_address(address)
    try:
        return f"the SuperLink answers at {address}, {tls_version(address, folder / 'certificates' / 'ca.crt')}"
    except OSError as error:
        raise RunError(
            f"{address}: the SuperLink does not answer ({reason_of(error)}); start it with `sh start-superlink.sh`"
        ) from error


def _site(file: SiteFile) -> str:
    """A site's main loop touches its pulse file every few seconds, also while its process trains."""
    try:
        silent = time.time() - pulse_file(file).stat().st_mtime
    except OSError as error:
        raise RunError(
            f"{file.name}: the site is not running (it has no {PULSE}); start it with `sh start-supernode.sh`"
        ) from error
    if silent > _SILENCE:
        raise RunError(f"{file.name}: the site has been silent for {silent:.0f} s; look at its log, then restart it")
    return f"{file.name}: the site is at work"


def pulse_file(file: SiteFile) -> Path:
    """The file whose time says when a site was last at work."""
    return file.path("flwr") / PULSE
