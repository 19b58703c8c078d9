"""The key of the noise is part of a run, and a guarantee without one is called simulated wherever it is shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import fedl2g
from fedl2g.deploy.own_site import _describe
from fedl2g.errors import RunError, SettingError
from fedl2g.experiment import Experiment
from fedl2g.experiment.identity import SITES
from fedl2g.federation import Federation, Observer
from fedl2g.privacy.mechanism import Mechanism
from fedl2g.privacy.noise_key import KEY_VARIABLE, check_key, key_fingerprint
from fedl2g.report.collect import group_runs, read_runs
from fedl2g.report.page_tables import run_tables
from fedl2g.report.tables import leak_table, result_table
from fedl2g.round.record import RoundRecord, guarantee_of
from fedl2g.runs.progress import round_status
from fedl2g.runs.result import RunResult
from fedl2g.runs.tracking import scalars
from fedl2g.schema import image_schema
from forging import sealed_again

Tiny = Callable[..., Experiment]
SECRET, OTHER = "5" * 64, "6" * 64
PRIVATE: dict[str, Any] = {
    "method": "feddistill", "models": "small_cnn", "rounds": 2, "clients": 3, "participation": 1.0,
    "privacy": {"clip": 1.0, "noise_multiplier": 1.0, "noise": "server"},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


def test_a_fingerprint_is_salted_and_holds_nothing_of_the_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert key_fingerprint() is None
    monkeypatch.setenv(KEY_VARIABLE, SECRET)
    one, two = key_fingerprint(), key_fingerprint()
    assert one is not None
    assert one != two
    assert SECRET not in one
    for fingerprint in (one, two):
        check_key(fingerprint, tmp_path)
    for forged in ("", "scrypt", "scrypt:zz:", "scrypt::" + "0" * 128, 7, one[:-1], one.replace("scrypt", "md5")):
        with pytest.raises(SettingError, match="not the key"):
            check_key(forged, tmp_path)


class _Crash(Observer):
    def on_round(self, federation: Federation, record: RoundRecord) -> None:
        if record.round == 1:
            raise ZeroDivisionError


@pytest.fixture(scope="module")
def started(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs without and with a key that ended after one of two rounds."""
    paths = {name: tmp_path_factory.mktemp("runs") / name for name in ("open", "secret")}
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(KEY_VARIABLE, raising=False)
        for path in paths.values():
            with pytest.raises(ZeroDivisionError):
                fedl2g.run(tiny(**PRIVATE), path, [_Crash()])
            patch.setenv(KEY_VARIABLE, SECRET)
    return paths


@pytest.mark.parametrize(
    ("run", "key", "why"),
    [
        ("secret", None, r"not set, but .* was started with a key"),
        ("secret", OTHER, "not the key"),
        ("open", OTHER, r"set, but .* was started without a key"),
    ],
)
def test_a_run_goes_on_with_its_own_key_alone(
    run: str, key: str | None, why: str, started: dict[str, Path], tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    if key is not None:
        monkeypatch.setenv(KEY_VARIABLE, key)
    before = {path: path.read_bytes() for path in started[run].rglob("*") if path.is_file()}
    for attempt in (lambda: fedl2g.resume(started[run]), lambda: fedl2g.run(tiny(**PRIVATE), started[run])):
        with pytest.raises(SettingError, match=why) as caught:
            attempt()
        assert "\n" not in str(caught.value)
    assert before == {path: path.read_bytes() for path in started[run].rglob("*") if path.is_file()}


def test_a_run_that_does_not_say_is_refused(started: dict[str, Path]) -> None:
    about = started["open"] / "run.json"
    values = json.loads(about.read_text())
    sealed_again(about, {name: value for name, value in values.items() if name != "noise_key"})
    try:
        with pytest.raises(RunError, match="'noise_key' is missing"):
            fedl2g.resume(started["open"])
    finally:
        sealed_again(about, values)


def _printed(thing: object) -> str:
    console = Console(file=StringIO(), width=200)
    console.print(thing)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize(("run", "key", "simulated"), [("open", None, True), ("secret", SECRET, False)])
def test_with_its_key_a_run_goes_on_and_the_label_stands_wherever_the_guarantee_does(
    run: str, key: str | None, simulated: bool, started: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SECRET not in (started[run] / "run.json").read_text()
    if key is not None:
        monkeypatch.setenv(KEY_VARIABLE, key)
    assert fedl2g.resume(started[run]).rounds == 2
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    assert fedl2g.resume(started[run]).rounds == 2  # finished: nothing is drawn, and no key is needed
    (one,) = read_runs([started[run]], trust=True)
    result = one.directory.result()
    assert result is not None
    assert result.guarantee == ("simulated" if simulated else "secret noise")
    assert json.loads(json.dumps(result.to_dict()))["guarantee"] == result.guarantee
    content: Any = SimpleNamespace(groups=group_runs([one]), runs=[one])
    shown = {
        "progress": round_status(one.history),
        "the end of a run": _printed(result_table(result)),
        "report page": run_tables(content),
        "trackers": " ".join(scalars(one.history[-1])),
    }
    assert {name for name, text in shown.items() if "epsilon" in text or "privacy" in text} == set(shown)
    assert {name for name, text in shown.items() if "simulated" in text} >= (set(shown) if simulated else set())
    if not simulated:
        assert "(simulated)" not in "".join(shown.values())


def test_a_probe_says_it_too() -> None:
    leak: Any = SimpleNamespace(
        method="m", accuracy=0.5, one_round=0.5, all_rounds=0.5, samples=None, up_mb_per_round=0.1, epsilon=9.99,
        guarantee="simulated", selection="test",
    )  # fmt: skip
    assert "9.99 (simulated)" in _printed(leak_table([leak]))
    leak.guarantee = "secret noise"
    assert "simulated" not in _printed(leak_table([leak]))


def test_what_does_not_say_is_called_simulated() -> None:
    assert guarantee_of({"epsilon": 1.0, "delta": 1e-5}) == "simulated"
    assert guarantee_of({}) is None
    older = RunResult("m", 0, "finished", 5, 0.5, 3, 0.4, 0.4, 0.1, 1.0, {}, 0.1, 0.1, 1.0, 1.0, "here", 1.0, 1e-5)
    assert "simulated" in _printed(result_table(older))
    assert round_status([RoundRecord(1, privacy={"epsilon": 1.0})]) == "epsilon 1 (simulated)"


def test_sites_draw_no_noise_without_a_key_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"clip": 1.0, "noise_multiplier": 1.0}
    deployed = {"dataset": SITES, "partition": "iid", "clients": 2, "models": "small_cnn", "method": "feddistill"}
    for noise, simulated in (("client", False), ("server", True)):
        mechanism = Mechanism.of(Experiment(**deployed, privacy={**settings, "noise": noise}))
        assert mechanism is not None
        assert mechanism.simulated is simulated
    experiment = Experiment(**deployed, privacy={**settings, "noise": "client"})
    file: Any = SimpleNamespace(store="store", path=lambda name: tmp_path / name)
    request: Any = SimpleNamespace(run="ab", classes=("a", "b"), inputs=image_schema(1, 8, 8), experiment=experiment)
    with pytest.raises(SettingError, match="not set at this site"):
        _describe(file, request)
    monkeypatch.setenv(KEY_VARIABLE, SECRET)
    _describe(file, request)
    _describe(file, request)
    monkeypatch.setenv(KEY_VARIABLE, OTHER)
    with pytest.raises(SettingError, match="not the key"):
        _describe(file, request)
