"""A site's own record of a run and its local baseline: right, readable, and nothing of it leaves the site."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the optional extra `flower` is not installed")

from flwr.app import RecordDict

from fedl2g.deploy import baseline
from fedl2g.deploy.answering import answer
from fedl2g.deploy.coordinator import read_coordinator
from fedl2g.deploy.practice import write_practice_data
from fedl2g.deploy.scaffold import Plan, scaffold
from fedl2g.deploy.site import disclosed_by
from fedl2g.deploy.site_file import SiteFile, Tell, read_site, store_of
from fedl2g.engines.flower import messages
from fedl2g.engines.flower.identity import pack_identity, unpack_disclosed, unpack_identity
from fedl2g.engines.flower.messages import Request
from fedl2g.engines.flower.node import Node
from fedl2g.errors import SettingError
from fedl2g.methods.registry import get_method
from fedl2g.runs.deployed import read_sites
from fedl2g.runs.directory import RunDirectory, find_runs
from fedl2g.runs.runner import resume
from fedl2g.schema import image_schema
from fedl2g.watch.follower import Follower
from fedl2g.watch.found import Watched

CLASSES = ("zero", "one")
ROUNDS = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation with data, whose sites have networks of fedl2g; two rounds without warm-up."""
    made = tmp_path_factory.mktemp("own") / "fed"
    scaffold(Plan(made, ("north", "south"), CLASSES, image_schema(3, 16, 16)))
    write_practice_data(made)
    experiment = made / "coordinator" / "experiment.toml"
    text = experiment.read_text().replace("rounds = 100", f"rounds = {ROUNDS}")
    experiment.write_text(text.replace('name = "fedl2g-f"', 'name = "fedl2g-f"\nwarmup_rounds = 0'))
    for site in ("north", "south"):
        file = made / "sites" / site / "site.toml"
        file.write_text(file.read_text().replace('"site_code:build_model"', '"small_cnn"'))
    return made


def request(folder: Path, round: int, best: int | None = None, run: str = "run1") -> RecordDict:
    coordinator = read_coordinator(folder / "coordinator" / "experiment.toml")
    e = coordinator.experiment
    broadcast = get_method(e.method.name).server(e.method, coordinator.setup.task).broadcast(round)
    table = coordinator.federation
    return messages.pack_request(Request(run, e, table.classes, table.inputs, round, broadcast, best))


def site(folder: Path, store: Path, **changed: Any) -> SiteFile:
    file = read_site(folder / "sites" / "north" / "site.toml", trust=True)
    return file.model_copy(update={"store": store, **changed})


def take_part(file: SiteFile, folder: Path) -> list[RecordDict]:
    """All that a site answers in a run."""
    return [
        answer(file, "evaluate", request(folder, 0)),
        *(answer(file, "train", request(folder, round, best=round - 1)) for round in range(1, ROUNDS + 1)),
        answer(file, "evaluate.keep", request(folder, ROUNDS, best=1)),
    ]


def plain(records: RecordDict) -> dict[str, dict[str, Any]]:
    """What a message holds, without the seconds that training took."""
    found = {name: dict(record) for name, record in records.items()}
    for array in found.get("payload", {}).values():
        found["payload"] = {"data": array.data, "stype": array.stype, "shape": list(array.shape)}
    found.get("report", {}).pop("seconds", None)
    return found


@pytest.fixture
def twin_at_once(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The local baseline is trained in this process, to the end, as soon as it is wanted."""
    started: list[str] = []

    class Ended:
        exit_code = 0

    def start(module: str, path: str, run: str, env: dict[str, str]) -> Ended:
        started.append(run)
        baseline.train_alone(current[-1], run)
        return Ended()

    current: list[SiteFile] = []
    keep = baseline.start_baseline

    def keep_for(file: SiteFile, run: str) -> None:
        current.append(file)
        keep(file, run)

    monkeypatch.setattr(baseline, "start_child", start)
    monkeypatch.setattr(baseline, "_baselines", {})
    monkeypatch.setattr("fedl2g.deploy.answering.start_baseline", keep_for)
    return started


def test_a_site_sees_itself_and_nothing_of_it_leaves(folder: Path, tmp_path: Path, twin_at_once: list[str]) -> None:
    with_twin = site(folder, tmp_path / "with", local_baseline=True)
    without = site(folder, tmp_path / "without")
    said, bare = take_part(with_twin, folder), take_part(without, folder)
    assert twin_at_once == ["run1"]  # once, for one run of one site
    # Every answer has exactly the records that it had without any of this, and the same values.
    assert [plain(records) for records in said] == [plain(records) for records in bare]
    evaluation, trained = {"about", "counts", "scores", "others"}, {"about", "report", "metrics", "payload"}
    assert [set(records) for records in said] == [evaluation, *[trained | evaluation] * ROUNDS, {"about"}]
    own = RunDirectory.open(tmp_path / "with" / "run1" / "own")
    alone = RunDirectory.open(tmp_path / "with" / "run1" / "alone")
    history = own.history()
    assert [record.round for record in history] == [0, 1, 2]
    for number, record in enumerate(history):
        counts = dict(said[number]["counts"])  # type: ignore[call-overload]
        assert record.accuracy is not None
        assert record.accuracy.counts == {0: (counts["correct"], counts["samples"])}
        if number:
            assert record.client_losses == {0: dict(said[number]["report"])["loss"]}  # type: ignore[call-overload]
    assert (own.result() or own).status == "finished"  # type: ignore[union-attr]
    assert [record.round for record in alone.history()] == [0, 1, 2]
    log = (own.path / "log.txt").read_text()
    best, local = history[-1].accuracy, alone.history()[-1].accuracy
    assert best is not None
    assert local is not None
    gain = f"{100 * (best.pooled - local.pooled):+.2f} points"
    assert f"round 2: accuracy {best.pooled:.2%}" in log
    assert f"test samples); alone {local.pooled:.2%}: federation {gain}\n" in log
    assert "the run is over: best accuracy" in log
    assert log.count("): the federation brought ") == 1
    assert "loss" in log
    assert not (tmp_path / "without" / "run1" / "alone").exists()
    assert "alone" not in (tmp_path / "without" / "run1" / "own" / "log.txt").read_text()
    assert read_sites(own.path)[0].train_samples == 45
    with pytest.raises(SettingError, match="the run of a deployment; the coordinator of the federation continues it"):
        resume(own.path, rounds=9)


def test_the_local_baseline_is_local_training_on_the_sites_own_data(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit by bit the client of an inline run of `local` that has the other sites too, and it goes on where it was."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "flower"))
    from inline_twin import inline_twin

    file = site(folder, tmp_path / "store")
    answer(file, "train", request(folder, 1))
    baseline.train_alone(file, "run1", rounds=1)
    path = baseline.train_alone(file, "run1")
    text = (folder / "coordinator" / "experiment.toml").read_text()
    local = tmp_path / "local.toml"
    local.write_text(text.replace('name = "fedl2g-f"\nwarmup_rounds = 0', 'name = "local"'))
    inline_twin(folder, local, tmp_path / "inline", {})
    inline = RunDirectory.open(tmp_path / "inline" / "run").history()
    found = RunDirectory.open(path).history()
    assert len(found) == len(inline) == ROUNDS + 1
    for one, other in zip(found, inline, strict=True):
        assert one.accuracy is not None
        assert other.accuracy is not None
        assert one.accuracy.counts[0] == other.accuracy.counts[0]
        assert one.client_losses.get(0) == other.client_losses.get(0)
    assert np.isfinite(found[-1].client_losses[0])


def test_a_baseline_that_ends_after_the_run_logs_what_the_federation_brought(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedl2g.deploy.answering.start_baseline", lambda file, run: None)
    file = site(folder, tmp_path / "store", local_baseline=True)
    take_part(file, folder)
    log = tmp_path / "store" / "run1" / "own" / "log.txt"
    assert "the local baseline is not finished" in log.read_text()
    baseline.train_alone(file, "run1")
    own, alone = (RunDirectory.open(tmp_path / "store" / "run1" / name).result() for name in ("own", "alone"))
    assert own is not None
    assert alone is not None
    gain = f"{100 * (own.best_accuracy - alone.best_accuracy):+.2f} points"
    assert log.read_text().splitlines()[-1].endswith(f"): the federation brought {gain}")
    baseline.train_alone(file, "run1")  # done already
    assert log.read_text().count("): the federation brought ") == 1


def test_a_site_shows_the_run_in_which_it_takes_part_as_running(folder: Path, tmp_path: Path) -> None:
    file = site(folder, tmp_path / "store")
    records = [RunDirectory(tmp_path / "store" / run / "own") for run in ("run1", "run2")]
    answer(file, "train", request(folder, 1))
    assert [record.running for record in records] == [True, False]
    answer(file, "train", request(folder, 1, run="run2"))
    assert [record.running for record in records] == [False, True]
    answer(file, "evaluate.keep", request(folder, 1, run="run2"))
    assert [record.running for record in records] == [False, False]


def test_watch_shows_the_run_that_is_on_and_not_an_equal_one_that_is_over(folder: Path, tmp_path: Path) -> None:
    file = site(folder, tmp_path / "store")
    take_part(file, folder)
    watched = Follower(Watched(tmp_path / "store"), period=0.0, rest=0.0)
    assert "<td>finished" in watched.state().page()
    answer(file, "train", request(folder, 1, run="run2"))
    page = watched.state().page()
    assert "<td>running" in page
    assert "1 of 2" in page
    assert "<td>finished" not in page
    answer(file, "evaluate.keep", request(folder, 1, run="run2"))  # the run ends early
    assert "<td>finished" in watched.state().page()  # of equal runs that are over, the one that got furthest


def test_a_run_is_running_while_a_new_process_trains_its_first_round(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, seen = Node.train, []

    def watched(node: Node, asked: Request) -> Any:
        seen.append(RunDirectory(tmp_path / "store" / "run3" / "own").running)
        return train(node, asked)

    monkeypatch.setattr(Node, "train", watched)
    answer(site(folder, tmp_path / "store"), "train", request(folder, 1, run="run3"))
    assert seen == [True]


def test_a_record_that_cannot_be_written_keeps_no_site_from_answering(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = site(folder, tmp_path / "store")
    (tmp_path / "store" / "run1").mkdir(parents=True)
    (tmp_path / "store" / "run1" / "own").write_text("a file")
    assert "report" in answer(file, "train", request(folder, 1))
    assert "this site's own record cannot be written" in caplog.text


def test_a_site_tells_what_its_file_allows(folder: Path) -> None:
    file = site(folder, Path("store"))
    for tell, expected in (
        (Tell(), ("small_cnn", True)),
        (Tell(network=False), (None, True)),
        (Tell(network=False, samples=False), (None, False)),
    ):
        records = pack_identity(1, disclosed_by(file.model_copy(update={"tell": tell})))
        assert unpack_identity(records, 2) == 1
        told = unpack_disclosed(records)
        assert (told.model, told.samples) == expected
        assert set(records["identity"]) == {
            "client",
            *(["model"] if told.model else []),
            *(["samples"] if told.samples else []),
        }


def test_watch_and_list_find_the_records_of_a_site(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "site_code", raising=False)
    north = folder / "sites" / "north"
    assert store_of(north) == store_of(north / "site.toml") == north / "store"
    assert store_of(folder) is None
    file = site(folder, tmp_path / "store")
    answer(file, "train", request(folder, 1))
    assert [run.path.name for run in find_runs(tmp_path / "store")] == ["own"]
    page = Follower(Watched(tmp_path / "store")).state().page()
    assert "The clients by round" in page
    assert '"north"' in page  # the line of client 0
    assert "client 0" not in page
    assert "site_code" not in sys.modules  # nothing of the site's code was imported to find them
