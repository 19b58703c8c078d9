"""The secret key of the noise: without one a guarantee is simulated, and a run continues only with its own key.

A run records a salted fingerprint (scrypt) of its key, from which the key cannot be recovered.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from fedl2g.errors import SettingError

KEY_VARIABLE = "FEDL2G_NOISE_KEY"
_SALT_BYTES = 16


def noise_key() -> str | None:
    """This process's key; None without one."""
    return os.environ.get(KEY_VARIABLE) or None


def key_fingerprint() -> str | None:
    """A fingerprint of the key for a run's records, with a new salt each time; None without a key."""
    key = noise_key()
    return None if key is None else _fingerprint(key, secrets.token_bytes(_SALT_BYTES))


def check_key(recorded: object, path: Path) -> None:
    """Raise SettingError unless the run at this path was started with this process's key, or both have none."""
    key = noise_key()
    if recorded is None and key is None:
        return
    if recorded is None:
        raise SettingError(
            f"{KEY_VARIABLE}: set, but {path} was started without a key; expected none, since the same rounds would "
            "get other noise; unset it, or start a new run in another directory"
        )
    if key is None:
        raise SettingError(
            f"{KEY_VARIABLE}: not set, but {path} was started with a key; expected the same one, since the same rounds "
            "would get other noise; set it, or start a new run in another directory"
        )
    if not _fits(key, recorded):
        raise SettingError(
            f"{KEY_VARIABLE}: not the key that {path} was started with; expected the same one, since the same rounds "
            "would get other noise; set that one, or start a new run in another directory"
        )


def _fits(key: str, recorded: object) -> bool:
    try:
        salt = bytes.fromhex(str(recorded).split(":")[1])
    except (ValueError, IndexError):
        return False
    return len(salt) == _SALT_BYTES and hmac.compare_digest(_fingerprint(key, salt), str(recorded))


def _fingerprint(key: str, salt: bytes) -> str:
    # "surrogateescape": a variable may hold any bytes.
    digest = hashlib.scrypt(key.encode("utf-8", "surrogateescape"), salt=salt, n=2**14, r=8, p=1)
    return f"scrypt:{salt.hex()}:{digest.hex()}"
