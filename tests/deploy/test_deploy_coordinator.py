"""The coordinator's side: certificates, the check before a run, following it, and how its end reaches the operator."""

from __future__ import annotations

import io
import json
import logging
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedl2g.folder import Folder
from fedl2g.schema import image_schema

pytest.importorskip("flwr", reason="the optional extra `flower` is not installed")

from rich.console import Console

from fedl2g.deploy import operate, server_app
from fedl2g.deploy.certificates import Certificates, check_server, make_certificates
from fedl2g.deploy.check_coordinator import check_coordinator
from fedl2g.deploy.coordinator import read_coordinator
from fedl2g.deploy.keys import write_key_pair
from fedl2g.deploy.outcome import read_outcome, reported
from fedl2g.deploy.registered import bind_key
from fedl2g.deploy.scaffold import Plan, scaffold
from fedl2g.errors import FedL2GError, RunError, SettingError
from fedl2g.round.record import Accuracy, RoundRecord
from fedl2g.runs.deployed import SiteRecord, how_to_continue, read_sites, write_sites
from fedl2g.runs.directory import RunDirectory
from fedl2g.runs.result import summarize

ADDRESS = "127.0.0.1:1"  # nobody listens there


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a coordinator, copied to a path with a space, without certificates."""
    scaffold(Plan(tmp_path / "fed", ("north", "south"), ("a", "b"), image_schema(1, 8, 8), port=1))
    return Path(shutil.move(tmp_path / "fed" / "coordinator", tmp_path / "the coordinator"))


@pytest.fixture
def ready(folder: Path) -> Path:
    """A coordinator's folder with certificates and both sites."""
    make_certificates(folder / "certificates", ADDRESS, "fed")
    for site in ("north", "south"):
        bind_key(write_key_pair(folder.parent / f"{site}_key"), site, folder)
    return folder


def lines(folder: Path, **how: Any) -> dict[str, tuple[bool, str]]:
    return {verdict.what: (verdict.good, verdict.detail) for verdict in check_coordinator(folder, **how)}


def test_certificates_are_made_once_and_renewed_by_the_same_authority(folder: Path) -> None:
    made, new = make_certificates(folder / "certificates", ADDRESS, "fed")
    assert new
    assert check_server(made, ADDRESS).startswith("valid until 2")
    for key in (made.authority_key, made.server_key):
        assert key.stat().st_mode & 0o777 == 0o600
    authority, server = made.authority.read_bytes(), made.server.read_bytes()
    _, new = make_certificates(folder / "certificates", ADDRESS, "fed")
    assert not new
    assert made.authority.read_bytes() == authority
    assert made.server.read_bytes() != server
    check_server(made, ADDRESS)
    made.authority_key.rename(folder / "offline")
    with pytest.raises(SettingError, match=r"ca\.key: missing; put the authority's key back"):
        make_certificates(folder / "certificates", ADDRESS, "fed")


def other_server(made: Certificates) -> None:
    other, _ = make_certificates(made.folder.parent / "other", ADDRESS, "other")
    made.server.write_bytes(other.server.read_bytes())
    made.server_key.write_bytes(other.server_key.read_bytes())


def other_key(made: Certificates) -> None:
    other, _ = make_certificates(made.folder.parent / "other", ADDRESS, "other")
    made.server_key.write_bytes(other.server_key.read_bytes())


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda made: made.server.unlink(), "server.crt: missing; run `sh make-certificates.sh`"),
        (lambda made: made.authority.write_text("x"), "it is not a certificate in PEM form"),
        (other_server, "is not signed by"),
        (other_key, "is not the key of"),
        (
            lambda made: make_certificates(made.folder, "fl.example.org:1", "fed"),
            "is for fl.example.org, localhost, 127.0.0.1; expected 10.0.0.1, which the sites use",
        ),
    ],
)
def test_a_coordinators_certificates_are_checked(
    spoil: Callable[[Certificates], object], sentence: str, ready: Path
) -> None:
    spoil(Certificates(ready / "certificates"))
    if "10.0.0.1" in sentence:
        file = ready / "experiment.toml"
        file.write_text(file.read_text().replace(ADDRESS, "10.0.0.1:1"))
    good, detail = lines(ready)["certificates"]
    assert not good
    assert sentence in detail


def test_a_coordinators_folder_is_checked_line_by_line(ready: Path) -> None:
    found = lines(ready)
    assert list(found) == ["experiment", "certificates", "sites", "disk", "superlink", "run"]
    assert found["experiment"][1].endswith("is valid: fedl2g-f, 100 rounds, 2 sites")
    assert found["sites"] == (True, "all 2 are registered: north, south")
    assert found["run"] == (True, f"{ready / 'runs' / 'first'} is new")
    good, detail = lines(ready, start=True)["superlink"]
    assert not good
    assert detail.startswith(f"{ADDRESS}: no SuperLink answers")
    assert f"start it with `sh '{ready / 'start-superlink.sh'}'`" in detail


def test_too_few_sites_are_said_by_name(folder: Path) -> None:
    assert "no site is registered" in lines(folder)["sites"][1]
    bind_key(write_key_pair(folder.parent / "key"), "south", folder)
    good, detail = lines(folder)["sites"]
    assert not good
    assert "1 of 2 are registered, and a round needs 2 replies (replies.minimum); not registered: north" in detail


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("rounds = 100", "round = 100", "round"),
        ("minimum = 2", "minimum = 3", "replies.minimum: 3 is more than the 2 sites"),
        ("rounds = 100", "rounds = [", "is not valid TOML"),
    ],
)
def test_a_mistake_in_the_experiment_is_the_first_line(old: str, new: str, sentence: str, ready: Path) -> None:
    file = ready / "experiment.toml"
    file.write_text(file.read_text().replace(old, new))
    good, detail = lines(ready)["experiment"]
    assert not good
    assert sentence in detail


def record(round: int) -> RoundRecord:
    accuracy = Accuracy(0.25 * round, 0.25 * round, 0.0, {0: 0.25 * round}, samples={0: 4, 1: 8})
    return RoundRecord(round, [0, 1], accuracy, loss=1.0)


def test_a_runs_directory_is_new_goes_on_is_over_or_holds_something_else(ready: Path) -> None:
    coordinator = read_coordinator(ready / "experiment.toml")
    directory = RunDirectory.create(ready / "runs" / "first", coordinator.setup)
    for round in range(3):
        directory.append(record(round))
    assert lines(ready)["run"] == (True, f"{directory.path} goes on after round 2 of 100")
    with directory.lock():
        assert lines(ready)["run"] == (True, f"{directory.path} is running now")
    history = directory.history()
    directory.finish(summarize(history, method="fedl2g-f", seed=0, status="finished", run=str(directory.path)))
    assert "is over (finished after 2 rounds); another --name starts another run" in lines(ready)["run"][1]
    file = ready / "experiment.toml"
    file.write_text(file.read_text().replace("client_lr = 0.01", "client_lr = 0.02"))
    good, detail = lines(ready)["run"]
    assert not good
    assert detail.endswith("holds another experiment (fedl2g-f, seed 0); choose another --name")
    assert lines(ready, name="second")["run"][0]
    (ready / "runs" / "third").mkdir()
    assert "is not a run directory; choose another --name" in lines(ready, name="third")["run"][1]
    assert "cannot be a folder name" in lines(ready, name="../x")["run"][1]


def test_how_a_run_ended_reaches_the_operator_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "outcome.json"
    with pytest.raises(FileNotFoundError):
        read_outcome(path)
    with reported(path):
        pass
    assert read_outcome(path) is None
    with pytest.raises(SettingError), reported(path):
        raise SettingError("rounds: no")
    assert isinstance(read_outcome(path), SettingError)
    with pytest.raises(KeyError), reported(path):
        raise KeyError("x")
    error = read_outcome(path)
    assert type(error) is FedL2GError
    assert str(error) == "server app: failed (KeyError: 'x'); see the SuperLink's log"


class FakeFlower:
    """A SuperLink that runs what a test says."""

    def __init__(self, app: Callable[[dict[str, str]], None] | None) -> None:
        self.app = app
        self.started: list[dict[str, str]] = []
        self.ended = False

    def start(self, settings: dict[str, str], name: str) -> str:
        self.started.append(settings)

        def run() -> None:
            if self.app is not None:
                self.app(settings)
            self.ended = True

        threading.Thread(target=run, daemon=True).start()
        return "17"

    def status(self, run: str) -> str:
        return "finished:failed" if self.ended else "running"


def follow(folder: Path, app: Callable[[dict[str, str]], None] | None, monkeypatch: pytest.MonkeyPatch) -> str:
    """Start and follow a run; what the terminal shows."""
    flower = FakeFlower(app)
    monkeypatch.setattr(operate, "flower_command", lambda _: flower)
    monkeypatch.setattr(operate, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(operate, "_ASK_SECONDS", 0.1)
    monkeypatch.setattr("fedl2g.runs.console.PLAIN_EVERY_SECONDS", 0.0)
    out = io.StringIO()
    operate.follow(folder, operate.start_run(folder, "first"), Console(file=out, width=200))
    return out.getvalue()


def test_a_run_is_followed_to_its_result(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def app(settings: dict[str, str]) -> None:
        assert settings["experiment"] == str(ready / "experiment.toml")
        with reported(Path(settings["outcome"])):
            directory = RunDirectory.create(Path(settings["run"]), read_coordinator(ready / "experiment.toml").setup)
            with directory.lock():
                for round in range(3):
                    directory.append(record(round))
                    (directory.path / "log.txt").write_text("2026-01-01 00:00:00,0 WARNING client 1: late [south]\n")
                    time.sleep(0.05)

    shown = follow(ready, app, monkeypatch)
    assert "first: round 2/100  accuracy 0.5000" in shown
    assert "WARNING client 1: late [south]" in shown
    assert operate.running(ready, "first") is None


def test_an_error_of_the_server_app_is_the_operators_error(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def app(settings: dict[str, str]) -> None:
        with pytest.raises(RunError), reported(Path(settings["outcome"])):
            raise RunError("SuperLink: could not be reached for 120 s")

    with pytest.raises(RunError, match=r"^SuperLink: could not be reached for 120 s$"):
        follow(ready, app, monkeypatch)


def test_a_server_app_that_is_killed_is_noticed(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match="the process of the run ended without a message"):
        follow(ready, None, monkeypatch)


def test_the_log_names_the_sites(tmp_path: Path) -> None:
    with Folder(tmp_path).appending("log.txt") as file:
        handler = server_app._log_to(file, ("north", "south"))
        try:
            logging.getLogger("fedl2g").warning("round 1: client 1 and client 0 differ, client 7 is nobody")
            logging.getLogger("fedl2g").warning("round 2: all is well")
        finally:
            logging.getLogger("fedl2g").removeHandler(handler)
            handler.close()
    first, second = (tmp_path / "log.txt").read_text().splitlines()
    assert first.endswith("nobody [south, north]")
    assert second.endswith("all is well")


def test_records_of_sites_survive_and_malformed_ones_are_nothing(tmp_path: Path) -> None:
    sites = {0: SiteRecord("north", "small_cnn", 45, 15), 1: SiteRecord("south")}
    write_sites(tmp_path, sites)
    assert read_sites(tmp_path) == sites
    for text in ("", "[]", '{"0": {"nmae": 1}}', '{"0": {"name": "a", "train_samples": "many"}}', "[" * 10_000):
        (tmp_path / "sites.json").write_text(text)
        assert read_sites(tmp_path) == {}


def test_how_a_run_is_continued_depends_on_its_folder(ready: Path, tmp_path: Path) -> None:
    run = ready / "runs" / "second"
    assert how_to_continue(run) == f"continue it with `fedl2g deploy run '{ready}' --name second`"
    assert "deploy run COORDINATOR" in how_to_continue(tmp_path / "elsewhere")
    state = json.dumps({"run": "1", "outcome": str(tmp_path / "gone.json"), "experiment": "e"})
    (ready / "flwr").mkdir(exist_ok=True)
    (ready / "flwr" / "started-first.json").write_text(state[:-3])
    assert operate.running(ready, "first") is None  # a damaged note of an earlier run is none
