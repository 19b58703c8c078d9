"""`fedl2g deploy run` and what commands say of a deployed run: sites by name, advice that works."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the optional extra `flower` is not installed")

from fedl2g.deploy.coordinator import read_coordinator
from fedl2g.deploy.keys import write_key_pair
from fedl2g.deploy.registered import bind_key
from fedl2g.round.record import Accuracy, RoundRecord
from fedl2g.runs.deployed import SiteRecord, write_sites
from fedl2g.runs.directory import RunDirectory

COORDINATOR = "fed/coordinator"


@pytest.fixture
def coordinator(fedl2g: Any, tmp_path: Path) -> Path:
    """The folder of a coordinator whose SuperLink is not running."""
    new = ("deploy", "new", "fed", "--site", "north", "--site", "south", "--class", "a", "--class", "b")
    assert fedl2g(*new, "--image-shape", "1,8,8", "--port", "1").code == 0
    folder = tmp_path / COORDINATOR
    for site in ("north", "south"):
        bind_key(write_key_pair(tmp_path / f"{site}_key"), site, folder)
    return folder


def test_certificates_say_what_stays_and_what_travels(fedl2g: Any, coordinator: Path) -> None:
    said = fedl2g("deploy", "certificates", COORDINATOR).out
    assert "ca.key; keep it offline: whoever has it can pose as the coordinator" in said
    assert "ca.crt; every site needs a copy beside its site.toml" in said
    assert "the sites keep their copies" in fedl2g("deploy", "certificates", COORDINATOR).out
    key = fedl2g("deploy", "key", "fed/sites/north").out
    here = key.replace(f"{Path.cwd()}/", "")
    assert "fed/sites/north/node_key; it stays here: keep it secret, and copy it nowhere" in here
    assert "node_key.pub; send it to the coordinator" in key


def test_a_run_that_cannot_start_says_why_and_starts_nothing(fedl2g: Any, coordinator: Path) -> None:
    assert fedl2g("deploy", "certificates", COORDINATOR).code == 0
    found = fedl2g("deploy", "run", COORDINATOR)
    assert found.code == 2
    *checked, last = found.err.splitlines()
    assert [line.split(":")[0] for line in checked] == [
        "ok    experiment", "ok    certificates", "ok    sites", "ok    disk", "FAIL  superlink", "ok    run",
    ]  # fmt: skip
    assert last.startswith("fedl2g: not started; superlink: 127.0.0.1:1: no SuperLink answers")
    file = coordinator / "experiment.toml"
    file.write_text(file.read_text().replace("rounds = 100", "roundz = 100"))
    found = fedl2g("deploy", "run", COORDINATOR, "--quiet")
    assert found.code == 2
    assert "did you mean 'rounds'?" in found.err
    assert not (coordinator / "runs").exists()
    for command in ("run", "stop", "certificates"):
        assert "nowhere: not a coordinator's folder" in fedl2g("deploy", command, "nowhere").sentence
    assert "is not running" in fedl2g("deploy", "stop", COORDINATOR).sentence
    checked_alone = fedl2g("deploy", "check", COORDINATOR)
    assert checked_alone.code == 1
    assert checked_alone.out.startswith("FAIL  experiment: ")


def test_the_records_of_a_deployed_run_say_who_took_part(fedl2g: Any, coordinator: Path) -> None:
    setup = read_coordinator(coordinator / "experiment.toml").setup
    run = RunDirectory.create(coordinator / "runs" / "first", setup)
    for round in range(2):
        accuracy = Accuracy(0.5, 0.5, 0.0, {0: 0.5, 1: 0.5}, samples={0: 10, 1: 12})
        run.append(RoundRecord(round, [0, 1], accuracy, loss=1.0))
    write_sites(run.path, {0: SiteRecord("north", "small_resnet", 30, 10), 1: SiteRecord("south")})
    path = f"{COORDINATOR}/runs/first"
    listed = fedl2g("list", f"{COORDINATOR}/runs").out
    assert "north=small_resnet, south" in listed
    assert "small_cnn" not in listed
    assert "iid" not in listed
    shown = fedl2g("show", path).out
    for words in (
        "north",
        "small_resnet",
        "30",
        "not disclosed",
        f"continue it with `fedl2g deploy run {COORDINATOR} --name first`",
    ):
        assert words in shown
    assert "small_cnn" not in shown
    assert 'partition = "iid"' not in shown
    assert json.loads(fedl2g("show", path, "--json").out)["sites"]["0"]["train_samples"] == 30
    assert fedl2g("report", path, "-o", "page.html").code == 0
    page = Path("page.html").read_text()
    assert "Sites: north (small_resnet, 30 training samples, 10 test samples), south (network not disclosed)." in page
    advice = fedl2g("resume", path)
    assert advice.code == 2
    assert f"continue it with `fedl2g deploy run {COORDINATOR} --name first`" in advice.sentence


def test_a_site_is_watched_by_its_file(fedl2g: Any, coordinator: Path) -> None:
    for where in ("fed/sites/north", "fed/sites/north/site.toml"):
        found = fedl2g("watch", where, "--once", "page.html")
        assert found.code == 2
        assert "fed/sites/north/store: this site has no records yet; they begin with its first round" in found.sentence


def test_health_is_an_exit_code(fedl2g: Any, coordinator: Path) -> None:
    assert fedl2g("deploy", "certificates", COORDINATOR).code == 0
    assert "the SuperLink does not answer" in fedl2g("deploy", "health", COORDINATOR).sentence
    assert "the site is not running" in fedl2g("deploy", "health", "fed/sites/north").sentence
    pulse = Path("fed/sites/north/flwr/pulse")
    pulse.parent.mkdir()
    pulse.touch()
    assert fedl2g("deploy", "health", "fed/sites/north").out == "north: the site is at work\n"
