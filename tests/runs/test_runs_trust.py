"""Code that somebody else's file names runs for nobody who has not said to trust it, however it is spelt."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import fedl2g
from fedl2g.cli import main
from fedl2g.datasets import load_dataset
from fedl2g.deploy.export import export_client
from fedl2g.errors import FedL2GError, RunError, SettingError
from fedl2g.experiment import Experiment
from fedl2g.references import references_in
from fedl2g.report.collect import read_runs
from fedl2g.report.embedding import embed
from fedl2g.report.page import write_report
from fedl2g.runs.directory import RunDirectory, find_runs
from fedl2g.runs.overview import overview
from fedl2g.schema import image_schema
from forging import reseal

ROOT = Path(__file__).parents[2]
TINY: dict[str, Any] = {"samples": 80, "partition": "iid", "clients": 2, "rounds": 1}
NETWORK = """
from torch import nn

def network(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, classes))
"""
MARK = "import pathlib; pathlib.Path({mark!r}).touch()\n"
MODULES = ("evil.py", "évil.py", "evil1.py", "pkg/__init__.py", "pkg/1b.py", "pkg/x.py")

NAMED = ["evil:network", "évil:network", "pkg.x:network", "evil:network#head", " evil:network", "evil:network ", "_:_"]
UNNAMEABLE = [
    "pkg.1b:f",
    "evil1.:f",
    "pkg..x:f",
    "evil:f.g",
    ".evil:f",
    "evil:",
    ":f",
    "evil:f:g",
    "evil :f",
    "evil:f\n",
]
LISTS = [["small_cnn", "evil:network"], "small_cnn, evil:network", ["small_cnn,evil:network"], [["evil:network"]]]


def forged(name: object) -> list[dict[str, Any]]:
    """The places in which an experiment's file could name code."""
    return [
        {"models": name},
        {"dataset": name},
        {"method": name},
        {"method": {"name": name}},
        {"aggregation": name},
        {"aggregation": {"rule": name}},
        {"execution": {"engine": name}},
        {"sampler": name},
    ]


class Scene:
    """A folder with modules that leave a mark when they are imported."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, folder / "imported"
        for name in MODULES:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(MARK.format(mark=str(self.mark)) + NETWORK, encoding="utf-8")

    def forge(self, sound: Path, settings: dict[str, Any]) -> Path:
        """A run directory whose experiment names code."""
        path = self.folder / "run"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(sound, path)
        whole = {**RunDirectory(path).settings(), **settings}
        (path / "experiment.toml").write_text(tomli_w.dumps(whole), encoding="utf-8")
        return reseal(path)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = Scene(tmp_path)
    importlib.invalidate_caches()
    yield found
    for name in [name for name in sys.modules if name.partition(".")[0] in ("evil", "évil", "evil1", "pkg")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of our own, over, with a checkpoint."""
    path = tmp_path_factory.mktemp("sound") / "run"
    fedl2g.run(Experiment(**TINY, method="fedproto", models="small_cnn"), path)
    return path


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that somebody made with a network of their own."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "evil.py").write_text(NETWORK)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        importlib.invalidate_caches()
        fedl2g.run(Experiment(**TINY, method="fedproto", models="evil:network"), folder / "run")
    del sys.modules["evil"]
    return folder / "run"


USES: dict[str, Callable[[Path, Path, bool], object]] = {
    "open": lambda path, out, trust: RunDirectory.open(path, trust=trust),
    "resume": lambda path, out, trust: fedl2g.resume(path, trust=trust),
    "export": lambda path, out, trust: export_client(path, 0, out / "model", trust=trust),
    "report": lambda path, out, trust: write_report([path], out / "report.html", trust=trust),
    "report of a folder": lambda path, out, trust: write_report([path.parent], out / "report.html", trust=trust),
    "t-SNE": lambda path, out, trust: embed(read_runs([path], trust=trust)[0]),
}


@pytest.mark.parametrize("use", USES)
def test_a_directory_that_names_code_is_refused_in_one_sentence(use: str, scene: Scene, sound: Path) -> None:
    for settings in [*forged("evil:network"), *[{"models": models} for models in LISTS]]:
        path = scene.forge(sound, settings)
        with pytest.raises(SettingError, match=r"names code to import \(evil:network\).* --trust") as told:
            USES[use](path, scene.folder, False)
        assert (told.value.exit_code, "\n" in str(told.value)) == (2, False)
        assert not scene.mark.exists()


@pytest.mark.parametrize("name", NAMED + UNNAMEABLE)
def test_no_spelling_is_imported_without_trust(name: str, scene: Scene, sound: Path) -> None:
    """A spelling that does not name code is refused later, as a value that cannot be used, or is only shown."""
    for settings in forged(name):
        path = scene.forge(sound, settings)
        for use, call in USES.items():
            if name in UNNAMEABLE and "report" in use and (name, settings) != ("evil:f.g", {"models": name}):
                continue  # a page that shows such a name takes a second to draw: once is enough
            refused = None
            try:
                call(path, scene.folder, False)
            except FedL2GError as error:
                refused = error.exit_code
            assert refused == 2 or (refused is None and name in UNNAMEABLE), use
            assert not scene.mark.exists(), (use, settings)
        with contextlib.suppress(FedL2GError):
            RunDirectory(path).experiment()
        assert not scene.mark.exists(), settings


def test_references_are_found_wherever_they_stand() -> None:
    for name in NAMED:
        assert all(references_in(settings) == [name.strip()] for settings in forged(name))
    assert not [
        name for name in UNNAMEABLE for settings in forged(name) if references_in(settings) and "\n" not in name
    ]
    for models in LISTS:
        assert references_in({"models": models}) == ["evil:network"]
    assert references_in({"a": {"b": [{"c": "m:f"}]}, "d": 3, "e": None, "f": b"m:g"}) == ["m:f"]
    assert references_in({"partition": "file:parts", "device": "cuda:0,cuda:1", "layout": "cnn4=contiguous"}) == []
    deep: Any = "evil:f"
    for _ in range(20_000):
        deep = [deep]
    assert references_in({"models": deep}) == ["evil:f"]


def test_an_experiment_cannot_be_had_from_an_untrusted_directory(scene: Scene, sound: Path) -> None:
    path = scene.forge(sound, {"method": "evil:network"})
    for directory in (RunDirectory(path), *find_runs(scene.folder)):
        with pytest.raises(SettingError, match="--trust"):
            directory.experiment()
    assert not scene.mark.exists()
    with pytest.raises(FedL2GError):  # it is imported, and is not a method
        RunDirectory.open(path, trust=True).experiment()
    assert scene.mark.exists()


def test_runs_that_name_code_are_listed_without_it(scene: Scene, sound: Path) -> None:
    scene.forge(sound, {"models": "evil:network", "dataset": "evil:network", "method": "evil:network"})
    (row,) = [overview(run) for run in find_runs(scene.folder)]
    assert (row["method"], row["status"]) == ("fedproto", "finished")
    assert not scene.mark.exists()


@pytest.mark.parametrize("use", ["resume", "export", "t-SNE"])
def test_with_trust_the_code_runs_where_it_is_needed(use: str, scene: Scene, own: Path) -> None:
    path = Path(shutil.copytree(own, scene.folder / "run"))
    if use == "resume":
        (path / "result.json").unlink()
        shutil.rmtree(path / "checkpoints")
    with pytest.raises(SettingError, match="--trust"):
        USES[use](path, scene.folder, False)
    assert not scene.mark.exists()
    assert USES[use](path, scene.folder, True)
    assert scene.mark.exists()


def test_a_users_own_code_needs_no_trust_when_the_user_names_it_again(scene: Scene, own: Path) -> None:
    path = Path(shutil.copytree(own, scene.folder / "run"))
    mine = Experiment(**TINY, method="fedproto", models="evil:network")
    before = RunDirectory(path).result()
    assert fedl2g.run(mine, path) == fedl2g.load(path, trust=True)
    assert RunDirectory.open_for(path, mine)[0].experiment() == mine
    (path / "result.json").unlink()
    again = fedl2g.run(mine, path)
    assert before is not None
    assert again.best_accuracy == before.best_accuracy


def test_a_users_experiment_runs_no_code_that_only_the_directory_names(scene: Scene, sound: Path) -> None:
    """The fingerprint in run.json says it is the user's experiment; experiment.toml is another one."""
    path = scene.forge(sound, {"dataset": "evil:network", "models": "evil:network"})
    mine = Experiment(**TINY, method="fedproto", models="small_cnn")
    for finished in (True, False):
        if not finished:
            (path / "result.json").unlink()
        with pytest.raises(RunError, match=r"names code that this experiment does not name \(evil:network\)"):
            fedl2g.run(mine, path)
    path = scene.forge(sound, {"client_lr": 0.5})
    with pytest.raises(RunError, match=r"experiment\.toml and run\.json belong to different runs"):
        fedl2g.run(mine, path)
    assert not scene.mark.exists()
    with pytest.raises(RunError, match="holds another experiment"):
        RunDirectory.open_for(path, Experiment(**TINY, method="local", models="small_cnn"))


def test_a_file_and_a_directory_that_do_not_belong_together_are_not_resumed(scene: Scene, sound: Path) -> None:
    path = scene.forge(sound, {"client_lr": 0.5})
    (path / "result.json").unlink()
    with pytest.raises(RunError, match=r"experiment\.toml and run\.json belong to different runs"):
        fedl2g.resume(path)


def in_process(*arguments: str) -> tuple[int, str, str]:
    """What the command says, called as the console script calls it."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["fedl2g", *arguments])
        patch.setattr(sys, "path", list(sys.path))
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0), out.getvalue(), err.getvalue()


COMMANDS = {
    "resume": ("resume", "run", "--quiet"),
    "export": ("export", "run", "--client", "0", "--out", "model"),
    "report": ("report", "run", "--quiet"),
    "plot": ("plot", "run", "--figure", "tsne"),
    "show": ("show", "run"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_refuses_and_takes_trust(name: str, scene: Scene, own: Path) -> None:
    path = Path(shutil.copytree(own, scene.folder / "run"))
    if name == "resume":
        (path / "result.json").unlink()
        shutil.rmtree(path / "checkpoints")
    code, _, told = in_process(*COMMANDS[name])
    assert (code, told.count("\n")) == (2, 1)
    assert "names code to import (evil:network)" in told
    assert "--trust" in told
    assert not scene.mark.exists()
    code, _, told = in_process(*COMMANDS[name], "--trust")
    assert code == 0, told
    assert scene.mark.exists() == (name != "show")  # to show a run takes no network


def test_a_process_of_its_own_refuses_too(scene: Scene, own: Path) -> None:
    """The tests above have imported the package before; here the command starts from nothing, in the run's folder."""
    shutil.copytree(own, scene.folder / "run")
    refused = subprocess.run(
        [sys.executable, "-m", "fedl2g", *COMMANDS["show"]],
        cwd=scene.folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(scene.folder)])},
        check=False,
        timeout=300,
    )
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "names code to import (evil:network)" in refused.stderr
    assert not scene.mark.exists()


def test_list_imports_nothing(scene: Scene, own: Path) -> None:
    shutil.copytree(own, scene.folder / "run")
    code, listed, told = in_process("list", ".")
    assert code == 0, told
    assert "fedproto" in listed
    assert not scene.mark.exists()


# ---- deployments


COORDINATOR = {
    "method": "fedproto",
    "rounds": 2,
    "federation": {"classes": ["zero", "one"], "image_shape": [3, 32, 32], "sites": ["north"]},
}


@pytest.mark.parametrize("place", [{"method": "evil:network"}, {"method": {"name": "evil:network"}},
                                   {"models": "evil:network"}, {"aggregation": "evil:network"}])  # fmt: skip
def test_a_coordinator_names_no_code(place: dict[str, Any], scene: Scene) -> None:
    from fedl2g.deploy.coordinator import read_coordinator

    path = scene.folder / "experiment.toml"
    path.write_text(tomli_w.dumps(COORDINATOR))
    assert read_coordinator(path).experiment.method.name == "fedproto"
    path.write_text(tomli_w.dumps({**COORDINATOR, **place}))
    with pytest.raises(SettingError, match=r"names code to import \(evil:network\)"):
        read_coordinator(path)
    assert not scene.mark.exists()


@pytest.mark.parametrize("place", ["model", "data"])
def test_a_sites_code_is_for_the_site_or_for_who_trusts_it(place: str, scene: Scene) -> None:
    from fedl2g.deploy.check import check_site
    from fedl2g.deploy.export import export_site
    from fedl2g.deploy.site_file import read_site

    site, experiment = scene.folder / "site.toml", scene.folder / "experiment.toml"
    settings = {"client-id": 0, "name": "north", "model": "small_cnn", "data": "data", place: "evil:network"}
    site.write_text(tomli_w.dumps(settings))
    experiment.write_text(tomli_w.dumps(COORDINATOR))
    for refuse in (lambda: read_site(site, trust=False), lambda: export_site(site, scene.folder / "model")):
        with pytest.raises(SettingError, match=r"site\.toml: names code to import \(evil:network\).* --trust"):
            refuse()
    (verdict,) = check_site(site, experiment, offline=True)
    assert (verdict.what, verdict.good) == ("files", False)
    assert "--trust" in verdict.detail
    assert not scene.mark.exists()
    assert {verdict.what for verdict in check_site(site, experiment, offline=True, trust=True)} > {"data", "model"}
    assert scene.mark.exists()


def test_a_request_names_no_code(scene: Scene) -> None:
    pytest.importorskip("flwr", reason="the optional extra `flower` is not installed")
    from fedl2g.engines.flower.messages import Request, pack_request, unpack_request
    from fedl2g.errors import PayloadError

    experiment = Experiment(**TINY, method="fedproto", models="small_cnn")
    sent = Request("run1", experiment, ("a", "b"), image_schema(3, 32, 32), 1, {})
    assert unpack_request(pack_request(sent), 2**20).experiment.fingerprint == experiment.fingerprint
    for settings in [*forged("evil:network"), *[{"models": models} for models in LISTS]]:
        records = pack_request(sent)
        about: Any = records["about"]
        about["experiment"] = json.dumps({**json.loads(str(about["experiment"])), **settings})
        with pytest.raises(PayloadError, match=r"names code to import \(evil:network\)"):
            unpack_request(records, 2**20)
        assert not scene.mark.exists()
    for nonsense in ("[]", "3", '"evil:network"', "null", "[" * 100_000):
        about["experiment"] = nonsense
        with pytest.raises(PayloadError):
            unpack_request(records, 2**20)
    named = Experiment(**TINY, method="fedproto", models="evil:network")
    records = pack_request(Request("run1", named, ("a", "b"), image_schema(3, 32, 32), 1, {}))
    assert unpack_request(records, 2**20, trust=True).experiment.models == "evil:network"  # of a simulation


def test_a_study_folder_names_no_code(scene: Scene) -> None:
    from fedl2g.paper.study import Study

    mine = {"models": "evil:network"}
    Study.open(scene.folder, "smoke", settings=mine).save()
    with pytest.raises(SettingError, match=r"names code to import \(evil:network\)"):
        Study.open(scene.folder, "smoke")
    assert Study.open(scene.folder, "smoke", settings=mine).settings == mine  # named again by the user
    assert not scene.mark.exists()


def test_data_of_a_run_that_names_none_is_read_as_ever(sound: Path, tmp_path: Path) -> None:
    assert export_client(sound, 0, tmp_path / "model")
    assert fedl2g.resume(sound) == fedl2g.load(sound)
    assert load_dataset("digits", samples=80)
