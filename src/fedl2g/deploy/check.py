"""`fedl2g deploy check SITE`: tries everything that a site needs to take part."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fedl2g.deploy.certificates import check_validity, read_certificate
from fedl2g.deploy.coordinator import Coordinator, read_coordinator
from fedl2g.deploy.fleet import ReachedSuperLink, check_clock, check_registration, reach
from fedl2g.deploy.package import check_package
from fedl2g.deploy.site_file import SiteFile, read_site
from fedl2g.deploy.verdict import Verdict, attempt
from fedl2g.errors import FedL2GError, SettingError
from fedl2g.privacy.noise_key import KEY_VARIABLE, noise_key

if TYPE_CHECKING:
    from fedl2g.datasets import Dataset
    from fedl2g.schema import Schema
    from fedl2g.setup import Setup


def check_site(
    site_path: Path, experiment_path: Path, *, offline: bool = False, trust: bool = False
) -> Iterator[Verdict]:
    """Run all checks; those that depend on a failed one are skipped. Code named by the site file needs `trust`."""
    try:
        file, coordinator = read_site(site_path, trust=trust), read_coordinator(experiment_path)
    except FedL2GError as error:
        yield Verdict("files", False, str(error))
        return
    yield attempt("package", lambda: check_package(file.package, site_path))
    yield _identity(file, coordinator)
    yield attempt("limits", lambda: _limits(file, coordinator))
    if coordinator.experiment.privacy.on and coordinator.experiment.privacy.noise == "client":
        yield attempt("noise key", _noise_key)
    yield from _training(file, coordinator)
    yield attempt("store", lambda: _writable(file.path(file.store)))
    yield attempt("node key", lambda: _private_key(file))
    yield attempt("certificate", lambda: _certificate(file))
    if not offline:
        yield from _coordinator(file, coordinator)


def _identity(file: SiteFile, coordinator: Coordinator) -> Verdict:
    sites = coordinator.federation.sites
    known = file.client_id < len(sites) and sites[file.client_id] == file.name
    detail = f"client {file.client_id} is {file.name!r}"
    if not known:
        detail = f"{detail} here; the coordinator's sites are {', '.join(f'{n} {s}' for n, s in enumerate(sites))}"
    return Verdict("identity", known, detail)


def _limits(file: SiteFile, coordinator: Coordinator) -> str:
    federation = coordinator.federation
    file.limits.check(coordinator.experiment, federation.inputs, len(federation.classes))
    return "the coordinator's experiment is within this site's limits"


def _noise_key() -> str:
    if noise_key() is None:
        raise SettingError(f"{KEY_VARIABLE}: not set; expected a long random secret where the SuperNode is started")
    return f"{KEY_VARIABLE} is set; the SuperNode must be started with the same one"


def _training(file: SiteFile, coordinator: Coordinator) -> Iterator[Verdict]:
    """Data, labels, split, model, and one batch forward and backward."""
    from fedl2g.deploy.own_site import load_data, own_site

    found: list[Dataset] = []
    table = coordinator.federation

    def data() -> str:
        found.append(load_data(file, table.classes, table.inputs))
        return f"{len(found[0])} {found[0].schema} in {file.data}"

    yield from _columns(file, table.inputs)
    yield attempt("data", data)
    if found:
        yield attempt("labels", lambda: _labels(found[0]))
        yield attempt("split", lambda: _split(own_site(file, coordinator.experiment, found[0])))
    yield attempt("model", lambda: _model(file, coordinator))
    if found:
        yield attempt("batch", lambda: _batch(file, coordinator, found[0]))


def _columns(file: SiteFile, inputs: Schema) -> Iterator[Verdict]:
    """For a table, what each of the federation's columns holds here."""
    from fedl2g.datasets.kinds import TABLES
    from fedl2g.datasets.tables import compare_columns, read_frame

    path = file.path(file.data)
    if inputs.kind != "table" or path.suffix.lower() not in TABLES or not path.is_file():
        return
    try:
        frame = read_frame(path)
    except FedL2GError:
        return  # reported by the check of the data
    for what, good, detail in compare_columns(frame, inputs, (file.label or "",)):
        yield Verdict(what, good, detail)


def _labels(dataset: Dataset) -> str:
    held = sorted({int(label) for label in dataset.labels})
    if held[0] < 0 or held[-1] >= dataset.classes:
        raise ValueError(f"labels range from {held[0]} to {held[-1]}; expected 0 to {dataset.classes - 1}")
    return (
        f"{len(held)} of the federation's {dataset.classes} classes: {', '.join(dataset.class_names[k] for k in held)}"
    )


def _split(setup: Setup) -> str:
    train, test = (sum(map(len, part)) for part in (setup.partition.train, setup.partition.test))
    if train < 2 or test < 1:
        raise ValueError(f"{train} training and {test} test samples are too few; expected at least 2 and 1")
    return f"{train} training samples, {test} test samples"


def _model(file: SiteFile, coordinator: Coordinator) -> str:
    file.use_code()
    model = coordinator.setup.task.build_client(file.model, file.client_id)
    count = sum(parameter.numel() for parameter in model.parameters())
    return f"{file.model} builds, {count:,} parameters"


def _batch(file: SiteFile, coordinator: Coordinator, dataset: Dataset) -> str:
    import torch

    from fedl2g.deploy.own_site import own_site
    from fedl2g.engines.host import Host
    from fedl2g.learning.devices import resolve_device
    from fedl2g.process import one_thread

    with one_thread():
        host = Host(own_site(file, coordinator.experiment, dataset), resolve_device(file.device))
        half = host.half(file.client_id)
        samples = half.client.train_set
        x, y = samples.batch(torch.arange(min(len(samples), coordinator.experiment.batch_size)))
        loss = torch.nn.functional.cross_entropy(half.model(x)[1], y)
        loss.backward()  # type: ignore[no-untyped-call]
    if not torch.isfinite(loss):
        raise ValueError("the loss of the first batch is not finite")
    if not any(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in half.model.parameters()):
        raise ValueError("the gradient of the first batch is zero")
    return f"{len(y)} samples forward and backward, loss {float(loss.detach()):.3f}"


def _writable(store: Path) -> str:
    store.mkdir(parents=True, exist_ok=True)
    probe = store / f".probe-{os.getpid()}"
    probe.write_bytes(b"fedl2g")
    probe.unlink()
    free = os.statvfs(store)
    return f"{store} is writable, {free.f_bavail * free.f_frsize / 2**30:.1f} GB free"


def _private_key(file: SiteFile) -> str:
    key = file.link[2]
    if not key.is_file():
        raise SettingError(f"{key}: does not exist; make it with `fedl2g deploy key` at this site")
    mode = stat.S_IMODE(key.stat().st_mode)
    if mode & 0o077:
        raise ValueError(f"{key}: readable by other users; run chmod 600 {key}")
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    if not isinstance(load_ssh_private_key(key.read_bytes(), None), ec.EllipticCurvePrivateKey):
        raise ValueError(f"{key}: not an elliptic-curve key; make one with `fedl2g deploy key`")
    return f"{key} is an elliptic-curve key, readable only by its owner"


def _certificate(file: SiteFile) -> str:
    path = file.link[1]
    until = check_validity(path, read_certificate(path), "get the coordinator's current ca.crt")
    return f"{path} is {until}"


def _coordinator(file: SiteFile, coordinator: Coordinator) -> Iterator[Verdict]:
    """What can be asked only while the coordinator's SuperLink runs."""
    found: list[ReachedSuperLink] = []

    def server() -> str:
        address, authority, _ = file.link
        expected = coordinator.federation.address
        if expected is not None and expected != address:
            raise SettingError(f"{address}: the coordinator's experiment.toml says {expected}; correct site.toml")
        read_certificate(authority)
        found.append(reach(address, authority))
        return f"{address} answers, {found[0].version}, certificate signed by {authority.name}"

    yield attempt("server", server)
    if found:
        yield attempt("clock", lambda: check_clock(found[0]))
        yield attempt("registration", lambda: check_registration(*file.link))
