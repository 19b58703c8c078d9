"""What a site asks the SuperLink before it joins: whether its key is registered, and whether their clocks agree.

This is the only module that uses Flower's Fleet API, through which SuperNodes join.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from fedl2g.errors import FedL2GError, SettingError

_TIMEOUT = 5.0  # seconds
# An invalid interval of heartbeats: the SuperLink looks up the key, then refuses the request, so nothing is activated.
_NO_INTERVAL = 0.0
_NEAR = 3.0  # seconds: the accuracy of the comparison
_AHEAD, _BEHIND = 4.0, 300.0  # seconds: beyond them a SuperLink refuses a site's signed time

_EXPIRED, _NOT_YET = 10, 9  # OpenSSL's codes for why a certificate is not accepted
_OTHER_NAME = (62, 64)


class ReachedSuperLink:
    """A SuperLink that answered by TLS."""

    def __init__(self, version: str, ahead: float | None) -> None:
        self.version = version
        self.ahead = ahead  # seconds by which this machine's clock is ahead of the SuperLink's; None: it does not say


def reach(address: str, authority: Path) -> ReachedSuperLink:
    """Connect to the SuperLink as a site does; SettingError says what is wrong, in words."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=str(authority))
    connection = http.client.HTTPSConnection(host, int(port), timeout=_TIMEOUT, context=context)
    try:
        connection.connect()
        version = str(connection.sock.version())
        asked = time.time()
        connection.request("GET", "/")
        response = connection.getresponse()
        date = response.getheader("Date")
        response.read()
    except ssl.SSLCertVerificationError as error:
        raise SettingError(_certificate_problem(address, authority, error)) from error
    except (ssl.SSLError, http.client.HTTPException) as error:
        raise SettingError(
            f"{address}: something answers there, but it is not a SuperLink with TLS; check the address and the port"
        ) from error
    except socket.gaierror as error:
        raise SettingError(f"{address}: no machine of this name is known; check the address in site.toml") from error
    except TimeoutError as error:
        raise SettingError(
            f"{address}: does not answer within {_TIMEOUT:.0f} s; check the address, and whether a firewall blocks "
            "outgoing connections to it"
        ) from error
    except OSError as error:
        raise SettingError(
            f"{address}: cannot be reached ({error.strerror or error}); check the address, and whether the "
            "coordinator's SuperLink is running"
        ) from error
    finally:
        connection.close()
    return ReachedSuperLink(version, _ahead(date, asked))


def _certificate_problem(address: str, authority: Path, error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code == _EXPIRED:
        return (
            f"{address}: its certificate has expired, or {authority.name} has, or this machine's clock is ahead; the "
            "coordinator makes a new one with make-certificates.sh"
        )
    if error.verify_code == _NOT_YET:
        return f"{address}: its certificate is not valid yet; this machine's clock is behind: set it"
    if error.verify_code in _OTHER_NAME:
        return (
            f"{address}: its certificate is for another name ({error.verify_message}); use the coordinator's address "
            "as it is in its certificate"
        )
    return (
        f"{address}: its certificate was not signed by this {authority.name}, which is not the coordinator's; get "
        "ca.crt from the coordinator again"
    )


def _ahead(date: str | None, asked: float) -> float | None:
    """A lower bound on the seconds ahead: the answer came after the question, and its date is in whole seconds."""
    try:
        return None if date is None else asked - 1.0 - parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None


def check_clock(superlink: ReachedSuperLink) -> str:
    """A sentence about this machine's clock; SettingError if the SuperLink would refuse this site because of it."""
    if (ahead := superlink.ahead) is None:
        return "the coordinator does not say what time it is there"
    if abs(ahead) < _NEAR:
        return "it agrees with the coordinator's"
    if -_BEHIND < ahead < _AHEAD:
        return f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the coordinator's"
    raise SettingError(
        f"this machine's clock is {abs(ahead):,.0f} s {'ahead of' if ahead > 0 else 'behind'} the coordinator's, which "
        "would refuse this site; set the clock (by NTP)"
    )


def why_not_joined(address: str, authority: Path, private_key: Path) -> str:
    """Why a SuperNode with this key could not join or was lost, as far as the SuperLink can be asked."""
    try:
        check_clock(reach(address, authority))
        check_registration(address, authority, private_key)
    except (FedL2GError, OSError, ValueError) as error:
        return str(error)
    return (
        "the coordinator answers and knows this key; a second node with it is refused, and for about a minute the one "
        "after a node that died"
    )


def check_registration(address: str, authority: Path, private_key: Path) -> str:
    """Ask whether this site's key is registered, without joining; SettingError if it is not."""
    import httpx
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    from fedl2g.engines.flower.internals import (
        ActivateNodeRequest,
        ApiErrorCode,
        FleetHttpClient,
        FlowerError,
        NodeAuthHttpInterceptor,
        RuntimeVersionHttpInterceptor,
        public_key_to_bytes,
    )

    private = load_ssh_private_key(private_key.read_bytes(), None)
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise SettingError(f"{private_key}: not an elliptic-curve key; make one with `fedl2g deploy key`")
    public = private.public_key()
    signed = NodeAuthHttpInterceptor(private, public)
    interceptors: list[Any] = [RuntimeVersionHttpInterceptor(component_name="SuperNode"), signed]
    request = ActivateNodeRequest(public_key=public_key_to_bytes(public), heartbeat_interval=_NO_INTERVAL)
    with FleetHttpClient.from_server_address(
        address, False, authority.read_bytes(), interceptors=interceptors
    ) as client:
        try:
            client.ActivateNode(request)
        except httpx.HTTPStatusError as error:
            code = getattr(FlowerError.from_json(error.response.text), "code", None)
            if code == ApiErrorCode.FLEET_INVALID_HEARTBEAT_INTERVAL:
                return "this site's key is registered at the coordinator"
            if error.response.status_code == 401:
                raise SettingError(
                    "the coordinator does not accept this key's signature; check this machine's clock"
                ) from error
            raise SettingError(
                f"the coordinator does not know this key; send it {private_key.name}.pub, to be registered there with "
                "`sh register.sh KEY SITE`"
            ) from error
        except httpx.HTTPError as error:
            raise SettingError(f"{address}: cannot be asked about the key ({error}); try again") from error
    return "this site's key is accepted by the coordinator"
