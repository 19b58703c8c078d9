"""The coordinator's certificates: a private authority, and the SuperLink's certificate that it signs."""

from __future__ import annotations

import datetime
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedl2g.engines.flower import require_flower
from fedl2g.errors import SettingError
from fedl2g.files import reason_of
from fedl2g.folder import read_given

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

AUTHORITY_DAYS = 3650
SERVER_DAYS = 825
SOON = datetime.timedelta(days=30)
"""A certificate that ends within this time is said to end soon."""


@dataclass(frozen=True)
class Certificates:
    """The files in the coordinator's folder `certificates`."""

    folder: Path

    @property
    def authority(self) -> Path:
        """The authority's certificate, which every site gets."""
        return self.folder / "ca.crt"

    @property
    def authority_key(self) -> Path:
        """The authority's private key: whoever has it can pose as the coordinator."""
        return self.folder / "ca.key"

    @property
    def server(self) -> Path:
        return self.folder / "server.crt"

    @property
    def server_key(self) -> Path:
        return self.folder / "server.key"


def make_certificates(folder: Path, address: str, name: str) -> tuple[Certificates, bool]:
    """Make an authority unless there is one, and a server's certificate signed by it; returns whether it is new.

    With the authority's key in the folder, an existing server's certificate is replaced by a new one, and no site needs
    another ca.crt.
    """
    require_flower()
    from cryptography.hazmat.primitives.asymmetric import ec

    made = Certificates(folder)
    new = not made.authority.exists()
    if new and made.authority_key.exists():
        raise SettingError(f"{made.authority}: missing beside {made.authority_key}; restore it, or remove the key")
    if not new and not made.authority_key.exists():
        raise SettingError(
            f"{made.authority_key}: missing; put the authority's key back for as long as it takes to sign, or remove "
            f"{made.authority} to begin with another authority, whose ca.crt every site then needs"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if new:
            key = ec.generate_private_key(ec.SECP256R1())
            _write_key(made.authority_key, key)
            made.authority.write_bytes(_pem(_authority(key, name)))
        else:
            key = _load_key(made.authority_key)
        issuer = read_certificate(made.authority)
        server_key = ec.generate_private_key(ec.SECP256R1())
        _write_key(made.server_key, server_key)
        made.server.write_bytes(_pem(_server(server_key, key, issuer, address.rpartition(":")[0])))
    except OSError as error:
        raise SettingError(f"{folder}: cannot be written ({reason_of(error)}); make it writable") from error
    return made, new


def read_certificate(path: Path) -> x509.Certificate:
    """Read a certificate; SettingError if there is none."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(read_given(path))
    except (OSError, ValueError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else "it is not a certificate in PEM form"
        raise SettingError(f"{path}: cannot be read ({reason}); get the coordinator's ca.crt again") from error


def check_validity(path: Path, certificate: x509.Certificate, remedy: str) -> str:
    """Until when a certificate is valid, in words; SettingError if it is not valid now."""
    now = datetime.datetime.now(datetime.UTC)
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > end:
        raise SettingError(f"{path}: expired on {end:%Y-%m-%d}; {remedy}")
    if now < start:
        raise SettingError(
            f"{path}: is valid only from {start:%Y-%m-%d %H:%M} UTC, and this machine's clock says "
            f"{now:%Y-%m-%d %H:%M}; set the clock"
        )
    return f"valid until {end:%Y-%m-%d}" + (", which is soon" if end - now < SOON else "")


def check_server(made: Certificates, address: str) -> str:
    """Check the server's certificate: by the authority, for this address; returns until when it is valid."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    remedy = "run `sh make-certificates.sh` in the coordinator's folder"
    for path in (made.authority, made.server, made.server_key):
        if not path.exists():
            raise SettingError(f"{path}: missing; {remedy}")
    authority, server = read_certificate(made.authority), read_certificate(made.server)
    check_validity(made.authority, authority, f"remove it and its key, and {remedy}; every site then needs the new one")
    until = check_validity(made.server, server, f"{remedy}: the sites keep their ca.crt")
    try:
        server.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise SettingError(f"{made.server}: is not signed by {made.authority}; {remedy}") from error
    if _load_key(made.server_key).public_key() != server.public_key():
        raise SettingError(f"{made.server_key}: is not the key of {made.server}; {remedy}")
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    known = [str(name) for kind in (x509.DNSName, x509.IPAddress) for name in names.get_values_for_type(kind)]
    if (host := address.rpartition(":")[0]) not in known:
        raise SettingError(f"{made.server}: is for {', '.join(known)}; expected {host}, which the sites use; {remedy}")
    return until


def _authority(key: ec.EllipticCurvePrivateKey, name: str) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    subject = _named(f"{name} authority")
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    return (
        _builder(subject, subject, key, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _server(
    key: ec.EllipticCurvePrivateKey, authority: ec.EllipticCurvePrivateKey, issuer: x509.Certificate, host: str
) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    names = list(dict.fromkeys((host, "localhost", "127.0.0.1")))
    return (
        _builder(_named(host[:64]), issuer.subject, key, SERVER_DAYS)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    from cryptography import x509

    # Valid from yesterday on: the clocks of sites differ a little.
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    end, number = start + datetime.timedelta(days=days), x509.random_serial_number()
    return x509.CertificateBuilder(issuer, subject, key.public_key(), number, start, end)


def _named(name: str) -> x509.Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:64])])


def _general_name(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return certificate.public_bytes(serialization.Encoding.PEM)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    from cryptography.hazmat.primitives import serialization

    data = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise SettingError(f"{path}: cannot be read as a private key; restore it from a copy") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SettingError(f"{path}: not an elliptic-curve key; expected the one that was made here")
    return key
