"""A sampler, a rule and an engine of one's own: from a plugin file, and from an installed package (entry points)."""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedl2g
from fedl2g.errors import SettingError
from fedl2g.references import load_plugin
from fedl2g.registry import engines, rules, samplers

TOYS = '''
from fedl2g import Sampler, register_engine, register_rule, register_sampler
from fedl2g.engines.inline import InlineEngine

opened = []


class EvenClients(Sampler):
    """Clients with even numbers."""

    def draw(self, round):
        return list(range(0, self.experiment.clients, 2))


def first_row(values, weights, settings):
    """What the client with the lowest number sent."""
    return values[0]


class CountingEngine(InlineEngine):
    """The inline engine, which counts how often it was opened."""

    def __init__(self, setup, scratch=None):
        super().__init__(setup, scratch)
        opened.append(setup.experiment.seed)


register_sampler("NAME-even", EvenClients)
register_rule("NAME-first", first_row)
register_engine("NAME-counting", CountingEngine)
'''
TINY: dict[str, Any] = {
    "samples": 160,
    "partition": "iid",
    "models": "small_cnn",
    "clients": 4,
    "rounds": 2,
    "method": "fedproto",
}

pytestmark = pytest.mark.usefixtures("registries_as_found")


def write_toys(folder: Path, name: str) -> Path:
    path = folder / f"{name}_toys.py"
    path.write_text(TOYS.replace("NAME", name))
    return path


def run_with(name: str, folder: Path) -> tuple[fedl2g.RunResult, list[fedl2g.RoundRecord]]:
    seen: list[fedl2g.RoundRecord] = []

    class Look(fedl2g.Observer):
        def on_round(self, federation: Any, record: fedl2g.RoundRecord) -> None:
            seen.append(record)

    experiment = fedl2g.Experiment(
        **TINY, sampler=f"{name}-even", aggregation=f"{name}-first", execution={"engine": f"{name}-counting"}
    )
    return fedl2g.run(experiment, folder / "run", [Look()]), seen


def check(name: str, folder: Path) -> None:
    result, records = run_with(name, folder)
    assert result.status == "finished"
    assert [record.participants for record in records[1:]] == [[0, 2], [0, 2]]
    assert sys.modules[f"{name}_toys"].opened == [0]


def test_from_a_plugin_file(tmp_path: Path) -> None:
    load_plugin(str(write_toys(tmp_path, "plugin")))
    check("plugin", tmp_path)


def test_what_the_docs_show_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "how-to-extend.md").read_text(encoding="utf-8")
    *blocks, reading = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    path = tmp_path / "from_the_docs.py"
    path.write_text("\n".join(blocks))
    load_plugin(str(path))
    experiment = fedl2g.Experiment(**TINY, sampler="two", aggregation="sign_mean", execution={"engine": "loud"})
    fedl2g.run(experiment, tmp_path / "runs" / "one")
    said = re.findall(r"round (\d): (\[.*\])", capsys.readouterr().out)
    assert [round for round, _ in said] == ["1", "2"]
    assert all(len(json.loads(clients)) == 2 for _, clients in said)
    values: dict[str, Any] = {}
    exec(reading.replace('Path("runs")', f"Path({str(tmp_path / 'runs')!r})"), values)
    assert list(values["rounds"]) == [0, 1, 2]


class Installed:
    """Stands in for `importlib.metadata.entry_points` where a package that offers the toys is installed."""

    def __init__(self, module: str, names: dict[str, str]) -> None:
        self.points = [importlib.metadata.EntryPoint(name, module, f"fedl2g.{group}") for group, name in names.items()]

    def __call__(self, *, group: str, name: str | None = None) -> list[importlib.metadata.EntryPoint]:
        return [point for point in self.points if point.group == group and name in (None, point.name)]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    write_toys(tmp_path, "package")
    monkeypatch.syspath_prepend(str(tmp_path))
    names = {"samplers": "package-even", "rules": "package-first", "engines": "package-counting"}
    monkeypatch.setattr("fedl2g.registry.entry_points", Installed("package_toys", names))
    yield "package"
    sys.modules.pop("package_toys", None)


def test_from_an_installed_package(installed: str, tmp_path: Path) -> None:
    assert f"{installed}-even" in samplers.names()
    assert f"{installed}-first" in rules.names()
    assert f"{installed}-counting" in engines.names()
    assert "package_toys" not in sys.modules  # a name is known without importing what it names
    check(installed, tmp_path)


def test_a_registered_rule_combines_the_replies(tmp_path: Path) -> None:
    """With the vectors of the first client alone, its own prototypes are the server's."""
    import torch

    from fedl2g.experiment.policies import Aggregation
    from fedl2g.payload import class_vectors

    load_plugin(str(write_toys(tmp_path, "rule")))
    sent = [class_vectors(torch.tensor([1]), torch.tensor([[float(n), 0.0]])) for n in (7, 8, 9)]
    combined = rules.get("rule-first").class_vectors(sent, None, Aggregation())
    assert combined["rows"].tolist() == [[7.0, 0.0]]


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"sampler": "unifrom"}, "uniform"),
        ({"aggregation": "medain"}, "median"),
        ({"execution": {"engine": "worker"}}, "workers"),
    ],
)
def test_a_wrong_name_is_an_error_that_says_the_nearest(settings: dict[str, Any], names: str) -> None:
    with pytest.raises(SettingError, match=names):
        fedl2g.Experiment(**TINY, **settings)


def test_built_in_names_cannot_be_taken() -> None:
    class Mine(fedl2g.Sampler):
        pass

    with pytest.raises(SettingError, match="'uniform' is"):
        fedl2g.register_sampler("uniform", Mine)
    with pytest.raises(SettingError, match="'median' is"):
        fedl2g.register_rule("median", lambda values, weights, settings: values[0])
    with pytest.raises(SettingError, match="'inline' is"):
        fedl2g.register_engine("inline", lambda setup, scratch: None)  # type: ignore[arg-type,return-value]


def test_everything_public_is_listed_and_there() -> None:
    names = dir(fedl2g)
    assert {"run", "Experiment", "ServerHalf", "ClientHalf", "Options", "Traits", "register_method"} <= set(names)
    assert sorted(fedl2g._HOMES) == sorted(set(names) - {"__version__"})
    for name in names:
        assert getattr(fedl2g, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fedl2g.nothing  # noqa: B018
