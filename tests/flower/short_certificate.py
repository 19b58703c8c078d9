"""A server certificate that is valid for seconds, signed by a federation's own authority."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


def write_certificate(folder: Path, seconds: float) -> None:
    """Write `server.crt` for the server's key and 127.0.0.1, valid for so many seconds from now."""
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    signing = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    key = load_pem_private_key((folder / "server.key").read_bytes(), None)
    now = datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(authority.subject)
        .public_key(key.public_key())  # type: ignore[arg-type]
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(seconds=seconds))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(signing, hashes.SHA256())  # type: ignore[arg-type]
    )
    (folder / "server.crt").write_bytes(certificate.public_bytes(Encoding.PEM))
