"""Files that sites and coordinators send each other: devices, FIFOs, large and deep ones end in a sentence, at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the optional extra `flower` is not installed")

from fedl2g.deploy.certificates import read_certificate
from fedl2g.deploy.check import check_site
from fedl2g.deploy.coordinator import read_coordinator
from fedl2g.deploy.keys import write_key_pair
from fedl2g.deploy.registered import bind_key
from fedl2g.deploy.scaffold import Plan, scaffold
from fedl2g.errors import FedL2GError
from fedl2g.schema import image_schema

READ: dict[str, Callable[[Path, Path], object]] = {
    "a public key": lambda sent, coordinator: bind_key(sent, "north", coordinator),
    "a certificate": lambda sent, coordinator: read_certificate(sent),
    "an experiment": lambda sent, coordinator: read_coordinator(sent),
}


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def fifo(path: Path) -> None:
    os.mkfifo(path)


def enormous(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


def deep(path: Path) -> None:
    path.write_text("a = " + "[" * 100_000)


def digits(path: Path) -> None:
    path.write_text("a = " + "1" * 100_000)


@pytest.fixture(autouse=True)
def _bounded() -> Iterator[None]:
    signal.alarm(60)
    yield
    signal.alarm(0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    scaffold(Plan(tmp_path / "fed", ("north", "south"), ("a", "b"), image_schema(1, 8, 8)))
    return tmp_path / "fed"


@pytest.mark.parametrize("what", READ)
@pytest.mark.parametrize("made", [endless, fifo, enormous, deep, digits], ids=lambda made: made.__name__)
def test_what_was_sent_is_read_with_care(what: str, made: Callable[[Path], None], folder: Path, tmp_path: Path) -> None:
    made(tmp_path / "sent")
    with pytest.raises(FedL2GError, match=r"sent: ") as refused:
        READ[what](tmp_path / "sent", folder / "coordinator")
    assert len(str(refused.value)) < 600


def test_a_link_that_the_operator_made_is_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "north.pub").symlink_to(write_key_pair(tmp_path / "key"))
    assert bind_key(tmp_path / "north.pub", "north", folder / "coordinator").is_file()


def test_a_site_without_key_or_data_is_told_so(folder: Path) -> None:
    site = folder / "sites" / "north"
    found = {
        verdict.what: verdict.detail
        for verdict in check_site(
            site / "site.toml", folder / "coordinator" / "experiment.toml", offline=True, trust=True
        )
        if not verdict.good
    }
    assert found["node key"] == f"{site / 'node_key'}: does not exist; make it with `fedl2g deploy key` at this site"
    assert found["data"].startswith(f"data: {site / 'data'} does not exist; expected a file, a folder, hf:NAME or")
