"""A node's key pair, in the format of Flower's node authentication."""

from __future__ import annotations

import os
from pathlib import Path

from fedl2g.engines.flower import require_flower
from fedl2g.errors import SettingError


def write_key_pair(path: Path) -> Path:
    """Write a P-384 private key with mode 600, and the public key to `path`.pub; returns the latter's path."""
    require_flower()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    public = path.with_name(path.name + ".pub")
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise SettingError(
            f"{path}: exists already, and the node may be registered with it; remove it to make another"
        ) from error
    except OSError as error:
        raise SettingError(f"{path}: cannot be written ({error.strerror}); choose another path") from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(private)
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH) + b"\n"
    )
    return public


def public_pem(text: str, source: Path) -> bytes:
    """A public key in the form in which Flower keeps the keys of registered nodes."""
    require_flower()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = serialization.load_ssh_public_key(text.encode())
    except (ValueError, NotImplementedError, UnsupportedAlgorithm) as error:
        raise SettingError(f"{source}: not a public key ({error}); expected a site's node_key.pub") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise SettingError(f"{source}: not an elliptic-curve key; make one with `fedl2g deploy key`")
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
