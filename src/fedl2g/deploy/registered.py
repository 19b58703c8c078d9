"""The coordinator's register: which site, and so which client, each public key belongs to (`keys.toml`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedl2g.deploy.coordinator import read_coordinator, read_toml
from fedl2g.deploy.keys import public_pem
from fedl2g.errors import SettingError, choices
from fedl2g.files import reason_of, write_text
from fedl2g.folder import read_given

KEYS_FILE = "keys.toml"
_HEAD = "# The public key of each site, written by `fedl2g deploy bind`. A node is the client whose key it has.\n"


def bind_key(public_key: Path, site: str, coordinator: Path) -> Path:
    """Write that a site has this public key; refused if the site has another one, or the key another site."""
    path, sites = coordinator / KEYS_FILE, read_coordinator(coordinator / "experiment.toml").federation.sites
    if site not in sites:
        raise SettingError(f"{site}: not a site of this federation; {choices(site, sites)}")
    try:
        text = " ".join(read_given(public_key).decode("ascii").split()[:2])
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{public_key}: cannot be read ({reason_of(error)}); check the path") from error
    key = public_pem(text, public_key)
    texts = _read(path) if path.exists() else {}
    for name, other in texts.items():
        same = public_pem(other, path) == key
        if same and name != site:
            raise SettingError(f"{public_key}: is already the key of {name}; each site needs its own key")
        if not same and name == site:
            raise SettingError(f"{site}: has another key in {path}; remove its line there if the site has a new one")
    write_text(
        path, _HEAD + "".join(f"{name} = {json.dumps(value)}\n" for name, value in {**texts, site: text}.items())
    )
    return path


def read_keys(path: Path, sites: Sequence[str]) -> Mapping[bytes, int]:
    """The client number of each registered key."""
    if not path.exists():
        raise SettingError(
            f"{path}: no site is registered; run `sh coordinator/register.sh PUBLIC-KEY SITE` for each site"
        )
    texts = _read(path)
    if unknown := [name for name in texts if name not in sites]:
        raise SettingError(f"{path}: {unknown[0]}: not a site of this federation; {choices(unknown[0], sites)}")
    keys = {public_pem(text, path): sites.index(name) for name, text in texts.items()}
    if len(keys) < len(texts):
        raise SettingError(f"{path}: two sites have the same key; each needs its own")
    return keys


def _read(path: Path) -> dict[str, str]:
    texts = read_toml(path)
    if wrong := [name for name, text in texts.items() if type(text) is not str]:
        raise SettingError(f"{path}: {wrong[0]}: not a public key; expected the text of the site's node_key.pub")
    return texts
