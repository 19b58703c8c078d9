"""`fedl2g.run`, `compare`, `load` and `resume` as a notebook uses them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedl2g
from fedl2g import data as make_data
from fedl2g.api.frames import history_frame
from fedl2g.errors import RunError, SettingError
from fedl2g.round.record import RoundRecord

SETTINGS: dict[str, Any] = {"clients": 2, "rounds": 2, "partition": "iid", "batch_size": 10, "quiet": True}
GUIDED = {"name": "fedl2g-f", "warmup_rounds": 0}


def network_of_a_notebook() -> type[nn.Module]:
    """A class that no other process can import."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(8 * 8, 32), nn.ReLU())
            self.fc = nn.Linear(32, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.fc(self.body(x))
            return logits

    return Net


@pytest.fixture
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDL2G_DATA", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> fedl2g.Result:
    out = tmp_path_factory.mktemp("api") / "run"
    return fedl2g.run(out=out, data=make_data("digits", samples=120), models="small_cnn", method=GUIDED, **SETTINGS)


def test_the_history_is_the_record_round_by_round(result: fedl2g.Result) -> None:
    frame = result.history
    assert list(frame.index) == [0, 1, 2]
    assert frame["accuracy"].max() == result.best_accuracy
    assert frame["accuracy"].idxmax() == result.best_round
    assert frame.loc[1:, "participants"].tolist() == [2, 2]
    assert frame["up_mb"].iloc[1:].mean() == pytest.approx(result.up_mb_per_round)
    assert "alignment" in frame
    assert {str(kind) for kind in frame.dtypes} <= {"float64", "int64"}  # NaN, and not None, where nothing is known


def test_client_seconds_of_a_round_are_those_of_a_client_that_replied() -> None:
    record = RoundRecord(1, participants=[0, 1, 2, 3], client_seconds=6.0, replied=3)
    assert history_frame([record])["client_seconds"].tolist() == [2.0]


def test_a_row_a_client(result: fedl2g.Result) -> None:
    frame = result.clients
    assert frame.index.tolist() == [0, 1]
    assert frame["architecture"].tolist() == ["small_cnn", "small_cnn"]
    assert frame["train_samples"].sum() + frame["test_samples"].sum() == 120
    pooled = (frame["accuracy"] * frame["test_samples"]).sum() / frame["test_samples"].sum()
    assert pooled == pytest.approx(result.best_accuracy)


def test_the_trained_networks_give_the_recorded_accuracy(result: fedl2g.Result) -> None:
    for client in (0, 1):
        correct, samples = result.models.load(client).counts
        assert correct / samples == result.clients["accuracy"][client]
        last, _ = result.models.last.load(client).counts
        assert last / samples == result.clients["last_accuracy"][client]
    assert isinstance(result.models[1], nn.Module)
    assert "2 clients, best" in repr(result.models)
    assert repr(result).startswith(f"<fedl2g result of {result.method}: accuracy {result.best_accuracy:.2%} in round ")
    with pytest.raises(KeyError, match="99 is not a client; expected 0 to 1"):
        result.models[99]


def test_pictures_and_the_page(result: fedl2g.Result, tmp_path: Path) -> None:
    chart = result.plot(file=tmp_path / "curves.svg")
    assert chart.to_dict()["config"]
    assert (tmp_path / "curves.svg").read_text().startswith("<svg")
    page = result.report(tmp_path / "report.html")
    assert "fedl2g-f" in page.read_text()
    with pytest.raises(SettingError, match="figure: 'curve' is not known; did you mean 'curves'"):
        result.plot("curve")


def test_an_earlier_run_is_loaded_and_a_finished_one_is_not_repeated(result: fedl2g.Result) -> None:
    assert fedl2g.load(result.run) == result
    assert fedl2g.resume(result.run, quiet=True) == result
    longer = {**SETTINGS, "rounds": 1}
    with pytest.raises(RunError, match="holds another experiment"):
        fedl2g.run(out=result.run, data=make_data("digits", samples=120), models="small_cnn", method="local", **longer)


@pytest.mark.usefixtures("_here")
def test_arrays_and_networks_of_a_notebook() -> None:
    draw = np.random.default_rng(0)
    images, labels = draw.integers(0, 256, (60, 8, 8), dtype=np.uint8), np.arange(60) % 10
    seen: list[int] = []

    class Counting(fedl2g.Observer):
        def on_round(self, federation: Any, record: fedl2g.RoundRecord) -> None:
            seen.append(record.round)

    data, net = make_data(images, labels), network_of_a_notebook()
    result = fedl2g.run(data=data, models=[net, "small_cnn"], method="local", observers=[Counting()], **SETTINGS)
    assert seen == [0, 1, 2]
    assert result.clients["architecture"].tolist() == ["Net", "small_cnn"]
    assert fedl2g.load(result.directory).models[0]  # this session's own network needs no trust
    assert isinstance(result.models[0], nn.Module)
    with pytest.raises(SettingError, match=r"models: Net was defined in this session, and execution.engine='workers'"):
        fedl2g.run(data=data, models=[net], method="local", execution={"engine": "workers"}, **SETTINGS)
    with pytest.raises(SettingError, match="jobs > 1 starts other processes"):
        fedl2g.compare(["local"], data=data, models=[net], jobs=2, **SETTINGS)


@pytest.mark.usefixtures("_here")
def test_a_comparison_gives_a_table_and_verdicts() -> None:
    data = make_data("digits", samples=120)
    found = fedl2g.compare(["local", "fedproto"], seeds=2, data=data, models="small_cnn", **SETTINGS)
    assert found.table.index.tolist() == ["local", "fedproto"]
    assert found.table["seeds"].tolist() == [2, 2]
    mean = np.mean([one.best_accuracy for one in found.results["fedproto"]])
    assert found.table.loc["fedproto", "best_accuracy"] == pytest.approx(mean)
    assert found.verdicts.index.tolist() == ["fedproto"]
    assert found.verdicts["sentence"].iloc[0].startswith("fedproto against local: ")
    assert (found.directory / "comparison.json").is_file()
    assert found.plot().to_dict()
    assert "local, fedproto" in repr(found)


@pytest.mark.usefixtures("_here")
def test_settings_of_the_data_are_those_of_the_run() -> None:
    """What `fedl2g.data` has loaded is not taken where the run's own settings ask for other samples or groups."""
    local = {**SETTINGS, "method": "local", "models": "small_cnn"}
    held = fedl2g.run(data=make_data("digits"), samples=120, **local).clients
    assert held["train_samples"].sum() + held["test_samples"].sum() == 120
    images, labels = np.zeros((80, 8, 8), np.uint8), np.arange(80) % 4
    held = fedl2g.run(data=make_data(images, labels), samples=40, **local).clients
    assert held["train_samples"].sum() + held["test_samples"].sum() == 40
    rows = [f"{n},{'ab'[n % 2]},{'xy'[n // 60]}\n" for n in range(80)]
    Path("rows.csv").write_text("age,state,place\n" + "".join(rows))
    table = make_data("rows.csv", "state")
    held = fedl2g.run(data=table, **{**SETTINGS, "method": "local", "partition": "by:place"}).clients
    assert sorted(held["train_samples"] + held["test_samples"]) == [20, 60]
    with pytest.raises(
        SettingError, match=r"dataset: data=<fedl2g data 'data'.*> says it already; give one of the two"
    ):
        fedl2g.run(data=make_data(images, labels), dataset="digits", **local)
    with pytest.raises(SettingError, match=r"samples: data=.* says it already"):
        fedl2g.run(data=make_data("digits", samples=120), samples=60, **local)


def test_wrong_arguments_are_one_sentence_without_arrays() -> None:
    with pytest.raises(SettingError, match="unknown setting 'roundz'; did you mean 'rounds'"):
        fedl2g.run(method="local", roundz=3)
    with pytest.raises(SettingError, match="clients: 0 is not allowed; expected a whole number"):
        fedl2g.run(method="local", clients=0)
    with pytest.raises(SettingError) as caught:
        fedl2g.run(method="local", clients=np.zeros(10_000))
    assert len(str(caught.value)) < 300


def test_arguments_of_another_kind_are_one_sentence() -> None:
    array, local = np.arange(1000), {"method": "local", "quiet": True}
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: fedl2g.run("local"), "experiment: a str is not an experiment; expected fedl2g.Experiment"),  # type: ignore[arg-type]
        (lambda: fedl2g.run(array), "experiment: an array is not an experiment"),  # type: ignore[arg-type]
        (lambda: fedl2g.run(data=array, **local), "data: an array cannot be used as it is; .* fedl2g.data"),  # type: ignore[arg-type]
        (lambda: fedl2g.run(data=(array, array), **local), "data: a tuple cannot be used as it is"),  # type: ignore[arg-type]
        (lambda: fedl2g.run(data=fedl2g.load_dataset("digits"), **local), "data: a Dataset cannot be used as it is"),  # type: ignore[arg-type]
        (lambda: fedl2g.run(out=5, **local), "out: 5 is not a path"),  # type: ignore[arg-type]
        (lambda: fedl2g.run(observers=[print], **local), "observers: .* is not an observer"),  # type: ignore[list-item]
        (lambda: fedl2g.run(observers=[fedl2g.Observer], **local), "observers: a class is not an observer"),  # type: ignore[list-item]
        (lambda: fedl2g.run(method=array), r"method: an array of shape \(1000,\) is not allowed"),
        (lambda: fedl2g.run(method={"name": "fedl2g-f", "server_lr": array}), r"server_lr: an array of shape"),
        (lambda: fedl2g.compare([]), r"methods: \[\] is not allowed"),
        (lambda: fedl2g.compare([5]), r"methods: \[5\] is not allowed"),  # type: ignore[list-item]
        (lambda: fedl2g.compare(["local"], seeds=0), "seeds: 0 is not allowed"),
        (lambda: fedl2g.compare(["local"], jobs=0), "jobs: 0 is not allowed"),
        (lambda: fedl2g.compare(["local"], method="local"), "method: a comparison has several; expected methods="),
        (lambda: fedl2g.run(quiet=array, method="local"), "quiet: an array of shape .* expected True or False"),  # type: ignore[arg-type]
        (lambda: fedl2g.load("run", trust="false"), "trust: 'false' is not allowed; expected True or False"),  # type: ignore[arg-type]
        (lambda: fedl2g.load(5), "path: 5 is not a path"),  # type: ignore[arg-type]
    ]
    for call, message in wrong:
        with pytest.raises(SettingError, match=message) as caught:
            call()
        assert len(str(caught.value)) < 300
        assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("_here")
def test_a_dictionary_of_settings_and_a_short_run_without_a_warm_up_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """As in `fedl2g.run(method="fedl2g-f", rounds=40)`: the default warm-up of 50 would leave no round to train in."""
    settings = {"method": "fedl2g-f", "clients": 2, "partition": "iid", "models": "small_cnn", "samples": 120}
    short = fedl2g.run({**settings, "rounds": 2})
    assert short.history["loss"].notna().tolist() == [False, False, True]
    assert "warm-up: 1 of the 2 rounds, because the 50 of fedl2g-f would leave none" in capsys.readouterr().err
    with pytest.raises(SettingError, match="is not more than the 3 warm-up rounds"):
        fedl2g.run({**settings, "rounds": 2, "method": {"name": "fedl2g-f", "warmup_rounds": 3}})
    del settings["method"]
    found = fedl2g.compare(["local", "fedl2g-f"], rounds=2, quiet=True, **{**settings, "method.warmup_rounds": 0})
    assert found.results["fedl2g-f"][0].history["loss"].notna().tolist() == [False, True, True]


def test_settings_are_completed() -> None:
    for function in (fedl2g.run, fedl2g.compare):
        assert {"data", "models", "rounds", "clients", "partition"} <= inspect.signature(function).parameters.keys()
    assert {"run", "compare", "load", "data", "Result"} <= set(dir(fedl2g))
