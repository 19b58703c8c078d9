"""`fedl2g deploy check COORDINATOR`: whether a run can be started or continued in a coordinator's folder."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

from fedl2g.deploy.certificates import Certificates, check_server
from fedl2g.deploy.command import local_address
from fedl2g.deploy.coordinator import Coordinator, read_coordinator
from fedl2g.deploy.registered import KEYS_FILE, read_keys
from fedl2g.deploy.verdict import Verdict, attempt
from fedl2g.errors import FedL2GError, RunError, SettingError, count
from fedl2g.files import quoted
from fedl2g.runs.deployed import RUNS
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.layout import is_run

FIRST = "first"
"""The default name of a run."""
EXPERIMENT = "experiment.toml"
_TIMEOUT = 5.0  # seconds
_LEAST_DISK = 256 * 2**20  # bytes


def check_coordinator(
    folder: Path, name: str = FIRST, experiment: Path | None = None, *, start: bool = False
) -> Iterator[Verdict]:
    """Check everything that a run in this folder needs; `start`: the SuperLink must be running."""
    path = experiment or folder / EXPERIMENT
    try:
        coordinator = read_coordinator(path)
    except FedL2GError as error:
        yield Verdict("experiment", False, str(error))
        return
    yield attempt("experiment", lambda: _experiment(path, coordinator))
    certificates = attempt("certificates", lambda: _certificates(folder, coordinator))
    yield certificates
    yield attempt("sites", lambda: _sites(folder, coordinator))
    yield attempt("disk", lambda: _disk(folder))
    if certificates.good:
        yield attempt("superlink", lambda: _superlink(folder, coordinator, start=start))
    yield attempt("run", lambda: _run(run_folder(folder, name), coordinator))


def _experiment(path: Path, coordinator: Coordinator) -> str:
    e = coordinator.experiment
    if e.replies.minimum > e.clients:
        raise SettingError(
            f"{path}: replies.minimum: {e.replies.minimum} is more than the {count(e.clients, 'site')}; lower it"
        )
    from fedl2g.methods.registry import get_method

    get_method(e.method.name).server(e.method, coordinator.setup.task)  # the networks that it builds
    return f"{path} is valid: {e.method.name}, {count(e.rounds, 'round')}, {count(e.clients, 'site')}"


def _address(coordinator: Coordinator) -> str:
    if coordinator.federation.address is None:
        raise SettingError(
            'federation.address: missing; expected where the sites reach the SuperLink, such as "fl.example.org:8443"'
        )
    return coordinator.federation.address


def _certificates(folder: Path, coordinator: Coordinator) -> str:
    address = _address(coordinator)
    return f"signed for {address}, {check_server(Certificates(folder / 'certificates'), address)}"


def _sites(folder: Path, coordinator: Coordinator) -> str:
    sites, minimum = coordinator.federation.sites, coordinator.experiment.replies.minimum
    known = set(read_keys(folder / KEYS_FILE, sites).values())
    missing = [site for number, site in enumerate(sites) if number not in known]
    remedy = f"run `sh {quoted(folder / 'register.sh')} PUBLIC-KEY SITE`"
    if len(known) < minimum:
        raise SettingError(
            f"{len(known)} of {len(sites)} are registered, and a round needs {minimum} replies (replies.minimum); not "
            f"registered: {', '.join(missing)}; {remedy}"
        )
    if missing:
        return f"{len(known)} of {len(sites)} are registered; without {', '.join(missing)}, until you {remedy}"
    return f"all {len(sites)} are registered: {', '.join(sites)}"


def _disk(folder: Path) -> str:
    if not os.access(folder, os.W_OK):
        raise SettingError(f"{folder}: cannot be written; make it writable for the user who runs the SuperLink")
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if free < _LEAST_DISK:
        raise SettingError(
            f"{folder}: {free / 2**20:.0f} MB free; expected at least {_LEAST_DISK / 2**20:.0f} MB; make room"
        )
    return f"{folder} is writable, {free / 2**30:.1f} GB free"


def _superlink(folder: Path, coordinator: Coordinator, *, start: bool) -> str:
    address = local_address(_address(coordinator))
    how = f"sh {quoted(folder / 'start-superlink.sh')}"
    try:
        version = tls_version(address, folder / "certificates" / "ca.crt")
    except ssl.SSLError as error:
        raise SettingError(
            f"{address}: another program answers there, or a SuperLink that was started with other certificates "
            f"({error.reason}); stop it, and start this one with `{how}`"
        ) from error
    except OSError as error:
        if start:
            raise SettingError(f"{address}: no SuperLink answers ({error.strerror}); start it with `{how}`") from error
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", int(address.rpartition(":")[2])))
        return f"port {address.rpartition(':')[2]} is free; start the SuperLink with `{how}`"
    return f"it answers at {address}, {version}"


def tls_version(address: str, authority: Path) -> str:
    """Connect to an address on this machine whose certificate this authority signed; returns the version of TLS."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=str(authority))
    with (
        socket.create_connection((host, int(port)), timeout=_TIMEOUT) as plain,
        context.wrap_socket(plain, server_hostname=host) as secure,
    ):
        return str(secure.version())


def run_folder(folder: Path, name: str) -> Path:
    """The directory of a run by its name; SettingError if the name cannot be a folder's."""
    if not name.replace("-", "").replace("_", "").isalnum():
        raise SettingError(f"--name: {name!r} cannot be a folder name; use letters, digits, - and _")
    return folder / RUNS / name


def _run(path: Path, coordinator: Coordinator) -> str:
    """Whether the run's directory is new or can be continued."""
    if not path.exists():
        return f"{path} is new"
    if not is_run(path):
        raise RunError(f"{path}: exists and is not a run directory; choose another --name")
    try:
        directory, experiment = RunDirectory.open_for(path, coordinator.experiment)
    except FedL2GError as error:
        raise RunError(str(error).replace("--out", "--name")) from error
    if directory.running:
        return f"{path} is running now"
    done = history[-1].round if (history := directory.history()) else 0
    result = directory.result()
    if result is not None and directory.about()["rounds"] == experiment.rounds:
        return f"{path} is over ({result.status} after {count(done, 'round')}); another --name starts another run"
    return f"{path} goes on after round {done} of {experiment.rounds}"
