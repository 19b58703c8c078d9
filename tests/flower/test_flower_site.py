"""What a site decides: its limits, its pinned package, and the process that trains."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the optional extra `flower` is not installed")

import httpx
from flwr.app import RecordDict

import fedl2g
from fedl2g.deploy import package
from fedl2g.deploy.answering import answer
from fedl2g.deploy.coordinator import read_coordinator
from fedl2g.deploy.limits import Limits
from fedl2g.deploy.package import check_package, installed_package, pin_package
from fedl2g.deploy.practice import write_practice_data
from fedl2g.deploy.runtime import Runtime, Task
from fedl2g.deploy.scaffold import Plan, scaffold
from fedl2g.deploy.site import Trainer, TrainerLost, run_site
from fedl2g.deploy.site_file import SiteFile, read_site
from fedl2g.engines.flower import identity, messages
from fedl2g.engines.flower.messages import Request
from fedl2g.errors import RunError, SettingError
from fedl2g.experiment import Experiment
from fedl2g.methods.registry import get_method
from fedl2g.schema import Schema, image_schema

CLASSES = ("zero", "one", "two", "three")
ADDRESS = "127.0.0.1:9"  # nobody listens there
SLOW_CODE = """
import os
import time
from pathlib import Path

from torch import nn

HERE = Path(__file__).parent


def build_model(classes, image_shape):
    (HERE / "pid").write_text(str(os.getpid()))
    while (HERE / "hold").exists():
        time.sleep(0.05)
    model = nn.Sequential()
    model.add_module("body", nn.Sequential(nn.Flatten(), nn.Linear(768, 8)))
    model.add_module("fc", nn.Linear(8, classes))
    return model
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("site") / "fed"
    scaffold(Plan(made, ("north", "south"), CLASSES, image_schema(3, 16, 16)))
    write_practice_data(made)
    (made / "sites" / "north" / "site_code.py").write_text(SLOW_CODE)
    yield made
    sys.modules.pop("site_code", None)  # each site has a module of this name, and a process of its own


def request(
    folder: Path, *, run: str = "run1", shape: tuple[int, int, int] = (3, 16, 16), **settings: Any
) -> RecordDict:
    """The coordinator's request to train in round 1, with some settings changed."""
    experiment = read_coordinator(folder / "coordinator" / "experiment.toml").experiment
    given = {**experiment.model_dump(), "method": {"name": "fedl2g-f", "warmup_rounds": 0}, **settings}
    changed = Experiment(**given)
    setup = read_coordinator(folder / "coordinator" / "experiment.toml").setup
    broadcast = get_method(changed.method.name).server(changed.method, setup.task).broadcast(1)
    return messages.pack_request(Request(run, changed, CLASSES, image_schema(*shape), 1, broadcast))


def site(folder: Path, **limits: Any) -> SiteFile:
    """The site `north` with these limits."""
    file = read_site(folder / "sites" / "north" / "site.toml", trust=True)
    return file.model_copy(update={"limits": Limits(**limits)})


def refusal(records: RecordDict) -> str:
    with pytest.raises(identity.Refused) as refused:
        identity.raise_refusal(records)
    return str(refused.value)


BEYOND: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "methods": ({}, {"method": {"name": "fedproto"}}, "asks for fedproto; this site allows fedl2g-f, fedl2g-l"),
    "rounds": ({"rounds": 5}, {"rounds": 6}, "asks for 6; this site allows at most 5"),
    "epochs": ({}, {"local_epochs": 10**9}, "asks for 1000000000; this site allows at most 10"),
    "megabytes": (
        {"megabytes": 0.0625},
        {"feature_dim": 8192},
        f"asks for {len(CLASSES)} classes x 8192 features, {len(CLASSES) / 32:.3g} MB; this site allows 0.0625 MB",
    ),
    "image-shape": ({"image-shape": [3, 16, 15]}, {}, "asks for [3, 16, 16]; this site allows at most [3, 16, 15]"),
}


@pytest.mark.parametrize(("limit", "shape", "vocabulary"), [("tokens", (65,), 100), ("vocabulary", (64,), 101)])
def test_the_form_of_texts_is_limited(limit: str, shape: tuple[int], vocabulary: int, folder: Path) -> None:
    limits = Limits(tokens=64, vocabulary=100)
    experiment = read_coordinator(folder / "coordinator" / "experiment.toml").experiment
    limits.check(experiment, Schema("text", (64,), vocabulary=100), 2)
    with pytest.raises(SettingError, match=rf"limits.{limit}: the coordinator asks for \d+; this site allows at most"):
        limits.check(experiment, Schema("text", shape, vocabulary=vocabulary), 2)


@pytest.mark.parametrize("limit", BEYOND)
def test_what_is_beyond_a_limit_is_refused_and_logged(
    limit: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limits, settings, reason = BEYOND[limit]
    said = refusal(answer(site(folder, **limits), "train", request(folder, **settings)))
    assert said == f"limits.{limit}: the coordinator {reason}"
    assert f"refused: {said}" in caplog.messages
    assert not list((folder / "sites" / "north" / "store").glob("run1"))


def test_a_broadcast_beyond_the_limit_is_refused_unread(folder: Path) -> None:
    records = request(folder)
    size = len(records["payload"]["payload"].data)  # type: ignore[index, union-attr]
    said = refusal(answer(site(folder, megabytes=(size - 1) / 2**20), "train", records))
    assert said == f"payload: has {size} bytes; expected at most {size - 1}"


def test_a_site_stores_no_more_runs_than_it_allows(folder: Path) -> None:
    file = site(folder, runs=2)
    for run in ("first", "second", "first"):
        trained, _ = messages.split_trained(answer(file, "train", request(folder, run=run)))
        messages.unpack_reply(trained, client=0, run=run, round=1, limit=2**20)
    said = refusal(answer(file, "train", request(folder, run="third")))
    assert said.startswith("limits.runs: the coordinator asks for run 3; this site allows at most 2")
    shutil.rmtree(folder / "sites" / "north" / "store")


def test_unknown_kinds_of_messages_and_code_of_the_coordinator_are_refused(folder: Path) -> None:
    assert "the kind 'evaluate.shell' is unknown" in refusal(answer(site(folder), "evaluate.shell", request(folder)))
    said = refusal(answer(site(folder), "train", request(folder, models="os:system")))
    assert "names code to import (os:system)" in said
    shutil.rmtree(folder / "sites" / "north" / "store")


def test_an_error_of_the_site_tells_the_coordinator_only_its_kind(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("patient 17")

    monkeypatch.setattr("fedl2g.deploy.answering.make_node", fail)
    said = refusal(answer(site(folder), "train", request(folder)))
    assert said == "site: its code failed (KeyError); see the site's log"
    assert "patient 17" in caplog.text


def test_the_pinned_package_is_the_installed_one_or_the_site_does_not_start(tmp_path: Path) -> None:
    scaffold(Plan(tmp_path / "fed", ("north",), CLASSES, image_schema(3, 16, 16)))
    path = tmp_path / "fed" / "sites" / "north" / "site.toml"
    before = path.read_text()
    with pytest.raises(SettingError, match="package: not pinned"):
        check_package(read_site(path, trust=True).package, path)
    pin_package(path)
    assert path.read_text().startswith(before.rstrip("\n"))
    assert read_site(path, trust=True).package == installed_package()
    assert "is the pinned one" in check_package(read_site(path, trust=True).package, path)
    pin_package(path)  # again: one table
    assert path.read_text().count("\n[package]\n") == 1
    path.write_text(re.sub(r"sha256:.{4}", "sha256:0000", path.read_text()))
    with pytest.raises(
        SettingError, match=r"is installed, but .* is pinned; install that one, or run `fedl2g deploy pin"
    ):
        check_package(read_site(path, trust=True).package, path)


def test_the_digest_covers_every_file_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "fedl2g"
    shutil.copytree(Path(fedl2g.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    assert len(list(copy.rglob("*.py"))) > 200
    monkeypatch.setattr(package, "files", lambda name: tmp_path / name)
    digest = installed_package().digest
    changes = [copy / "rng.py", copy / "deploy" / "resources" / "site" / "site.toml.template"]
    for file in changes:
        before = file.read_bytes()
        file.write_bytes(before + b"\n")
        assert installed_package().digest != digest
        file.write_bytes(before)
    (copy / "new.py").touch()
    assert installed_package().digest != digest
    (copy / "new.py").unlink()
    (copy / "__pycache__").mkdir()
    (copy / "__pycache__" / "rng.cpython-311.pyc").touch()
    assert installed_package().digest == digest


class StandIn:
    """A process that does nothing."""

    def __init__(self, *arguments: object, **settings: object) -> None:
        self.exit_code: int | None = None
        self.ended = False

    def end(self) -> None:
        self.ended = True

    def how_it_ended(self) -> str:
        return "exit code 1"


def test_a_supernode_that_lost_a_message_is_started_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = folder / "sites" / "north" / "site.toml"
    pin_package(path)
    supernodes: list[StandIn] = []

    def start(module: str, *arguments: str, env: dict[str, str]) -> StandIn:
        supernodes.append(StandIn())
        return supernodes[-1]

    def take(runtime: Runtime) -> Task:
        if len(supernodes) == 1:
            refused = httpx.Response(401, request=httpx.Request("POST", f"http://{ADDRESS}/pull-object"))
            monkeypatch.setattr(
                "fedl2g.deploy.runtime.pull_task_input", lambda client: refused.raise_for_status() and None
            )
            return Task(ADDRESS, "token")
        supernodes[-1].exit_code = 1
        raise httpx.ConnectError("it has ended")

    monkeypatch.setattr("fedl2g.deploy.site.start_child", start)
    monkeypatch.setattr("fedl2g.deploy.site.Trainer", StandIn)
    monkeypatch.setattr("fedl2g.deploy.site.log_to_stderr", lambda: None)
    monkeypatch.setattr("fedl2g.deploy.site.why_not_joined", lambda *link: "it is tired")
    monkeypatch.setattr(Runtime, "take", take)
    with (
        caplog.at_level("INFO"),
        pytest.raises(RunError, match=r"^SuperNode: ended with exit code 1: it is tired; start"),
    ):
        run_site(path)
    assert [supernode.ended for supernode in supernodes] == [True, True]
    assert "the SuperNode lost a message" in caplog.text
    assert not (path.parent / "flwr" / "runtime-secret").exists()


@pytest.fixture
def trainer(folder: Path) -> Iterator[Trainer]:
    path = folder / "sites" / "north" / "site.toml"
    pin_package(path)
    started = Trainer(path)
    yield started
    started.end()


@pytest.mark.slow
def test_training_that_takes_too_long_is_ended_and_a_dead_process_is_replaced(folder: Path, trainer: Trainer) -> None:
    at = folder / "sites" / "north"
    (at / "hold").touch()
    with pytest.raises(TimeoutError):
        trainer.answer("train", request(folder), 3.0, lambda: True)
    assert not alive(int((at / "pid").read_text()))

    def killed() -> bool:
        if (at / "pid").exists():
            os.kill(int((at / "pid").read_text()), signal.SIGKILL)
            (at / "pid").unlink()
        return True

    (at / "pid").unlink()
    with pytest.raises(TrainerLost, match="the process that trains died: signal 9"):
        trainer.answer("train", request(folder), 60.0, killed)
    (at / "hold").unlink()
    for _ in range(2):  # the second is answered from the store, by the same process
        trained, _ = messages.split_trained(trainer.answer("train", request(folder), 60.0, lambda: True))
        assert messages.unpack_reply(trained, client=0, run="run1", round=1, limit=2**20).report.steps > 0
    pid = int((at / "pid").read_text())
    trainer.end()
    assert not alive(pid)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
