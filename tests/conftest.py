"""Shared by all tests: caches of their own, and one thread."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _own_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Datasets and step times go to a folder of the session, which the processes of pytest-xdist share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "fedl2g-caches"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDL2G_DATA", str(folder / "datasets"))
        patch.setenv("FEDL2G_CACHE", str(folder))
        yield


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tests share few cores, and a forked process must not inherit a thread pool."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def registries_as_found() -> Iterator[None]:
    """What a test registers of its own is unknown to the next one."""
    from fedl2g.methods.registry import methods
    from fedl2g.registry import engines, rules, samplers

    registries = (methods, engines, rules, samplers)
    before = [set(registry.names()) for registry in registries]  # built-in ones are known before they are imported
    yield
    for registry, known in zip(registries, before, strict=True):
        for name in set(registry.names()) - known:
            del registry._registered[name]
