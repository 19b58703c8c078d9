"""Experiments: their values, settings in and out, overrides."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedl2g.errors import SettingError
from fedl2g.experiment import Experiment, flat, overlay, parse_override
from fedl2g.references import references_in

ROUND_TRIPS = [
    {},
    {"method": "local", "rounds": 3, "samples": 100, "image_size": 8},
    {"method": {"name": "fedl2g-l", "server_lr": 1e-05, "guide_init": "orthogonal"}, "client_lr": 1e-7},
    {"partition": "pathological:2", "models": ["cnn4", "resnet10"], "seed": 2**32 - 1, "reshuffle": False},
    {"aggregation": "median", "sampler": "poisson", "replies": {"deadline_seconds": 2.5, "minimum": 3}},
    {"privacy": {"clip": 1, "epsilon": 4}, "availability": {"deadline": 2}, "attack": {"share": 0.5, "kind": "noise"}},
    {"execution": {"engine": "workers", "workers": 3, "checkpoint_every": 7}, "precision": "float64"},
    {"dataset": 'C:\\strange "name"\tß.npz'},
]


@pytest.mark.parametrize("given_settings", ROUND_TRIPS)
def test_toml_gives_an_equal_experiment_back(given_settings: dict[str, Any], tmp_path: Path) -> None:
    experiment = Experiment(**given_settings)
    text = experiment.to_toml()
    again = Experiment.from_toml(text)
    assert again == experiment
    assert again.fingerprint == experiment.fingerprint
    assert again.to_toml() == text
    (tmp_path / "experiment.toml").write_text(text, encoding="utf-8")
    assert Experiment.from_file(tmp_path / "experiment.toml") == experiment


@settings(max_examples=50, deadline=None)
@given(st.floats(1e-300, 1e300), st.floats(0, 1, exclude_min=True), st.integers(0, 2**32 - 1), st.floats(0, 1e300))
def test_numbers_survive_toml_exactly(client_lr: float, participation: float, seed: int, server_lr: float) -> None:
    experiment = Experiment(
        client_lr=client_lr, participation=participation, seed=seed, method={"name": "fedl2g-f", "server_lr": server_lr}
    )
    assert Experiment.from_toml(experiment.to_toml()) == experiment


def test_is_frozen() -> None:
    with pytest.raises(Exception, match="frozen"):
        Experiment().rounds = 5  # type: ignore[misc]


def test_defaults_are_the_papers() -> None:
    e = Experiment()
    assert (e.clients, e.rounds, e.batch_size, e.local_epochs, e.client_lr) == (20, 1000, 10, 1, 0.01)
    assert (e.method.name, e.method.server_lr, e.method.warmup_rounds, e.method.quiz) == ("fedl2g-f", 100, 50, None)
    assert Experiment(method="fedl2g-l").method.server_lr == 0.1
    assert (e.participation, e.patience, e.method.guide_init) == (1.0, 100, "normal")


def test_overrides_lie_over_the_file() -> None:
    text = 'rounds = 5\nclients = 3\n[method]\nname = "fedl2g-l"\nserver_lr = 0.5\nquiz_size = 4\n'
    e = Experiment.from_toml(text, {"rounds": 70, "method.server_lr": 2, "execution.workers": 3})
    assert (e.rounds, e.clients, e.method.server_lr, e.method.quiz_size, e.execution.workers) == (70, 3, 2, 4, 3)


def test_naming_the_same_method_keeps_its_options_and_another_drops_them() -> None:
    text = '[method]\nname = "fedl2g-l"\nserver_lr = 0.5\n'
    assert Experiment.from_toml(text, {"method": "fedl2g-l"}).method.server_lr == 0.5
    assert Experiment.from_toml(text, {"method": "fedl2g-f"}).method.server_lr == 100
    assert Experiment.from_toml('method = "fedl2g-l"', {"method.quiz_size": 2}).method.quiz_size == 2
    assert Experiment.from_toml("", {"method.quiz_size": 2}).method.name == "fedl2g-f"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rounds=5", ("rounds", 5)),
        (" method.server_lr = 1e-3", ("method.server_lr", 0.001)),
        ("reshuffle=false", ("reshuffle", False)),
        ("partition=dirichlet:0.1", ("partition", "dirichlet:0.1")),
        ("models=cnn4,resnet10", ("models", "cnn4,resnet10")),
        ('dataset="a=b"', ("dataset", "a=b")),
        ("dataset=a=b", ("dataset", "a=b")),
    ],
)
def test_an_override_on_the_command_line_is_read(text: str, expected: tuple[str, object]) -> None:
    assert parse_override(text) == expected


@pytest.mark.parametrize("text", ["rounds", "=5", " = 5", ""])
def test_an_override_without_key_or_value_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="key=value"):
        parse_override(text)


def test_layouts_are_given_by_architecture() -> None:
    assert Experiment(models="cnn4,resnet18", layout="cnn4=channels_last").channels_last == {"cnn4"}
    deployed = Experiment(dataset="sites", models="cnn4", layout="resnet18=channels_last")  # a site's own model
    assert deployed.channels_last == {"resnet18"}


@pytest.mark.parametrize("text", ["rounds = ", "rounds = 5\nrounds = 6", "[method", "\x00"])
def test_text_that_is_not_toml_is_one_sentence(text: str) -> None:
    with pytest.raises(SettingError, match="not valid TOML"):
        Experiment.from_toml(text)


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"missing\.toml: cannot be read \(No such file"):
        Experiment.from_file(tmp_path / "missing.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingError, match="it is not UTF-8 text"):
        Experiment.from_file(tmp_path / "binary.toml")
    with pytest.raises(SettingError, match="cannot be read"):
        Experiment.from_file(tmp_path)


def test_an_override_into_a_plain_value_is_refused() -> None:
    with pytest.raises(SettingError, match="single value"):
        Experiment.from_toml("rounds = 5", {"rounds.more": 1})


@pytest.mark.parametrize(
    ("clients", "participation", "expected"),
    [
        (20, 1.0, 20),
        (20, 0.5, 10),
        (100, 0.29, 29),
        (10, 0.01, 1),
        (3, 0.5, 1),
        (1, 1.0, 1),
        (10, 0.7, 7),
        (7, 0.99, 6),
    ],
)
def test_participants_per_round(clients: int, participation: float, expected: int) -> None:
    assert Experiment(clients=clients, participation=participation).participants_per_round == expected


def test_the_file_holds_every_setting_that_has_a_value() -> None:
    """What a run did can be read from its file alone, also when the defaults change later."""
    experiment = Experiment(method="local", samples=100)
    told = flat(experiment.model_dump(mode="json", exclude_none=True))
    assert flat(tomllib.loads(experiment.to_toml())) == told
    assert {"samples", "method.name", "noise.std", "replies.minimum", "execution.engine"} <= told.keys()


def test_the_file_says_what_its_tables_are_about() -> None:
    lines = Experiment().to_toml().splitlines()
    assert all(lines[number - 1].startswith("# ") for number, line in enumerate(lines) if line.startswith("["))
    assert lines.index("[method]") > lines.index('device = "cpu"')


def test_a_table_given_as_one_word_takes_overrides() -> None:
    experiment = Experiment.from_toml('aggregation = "trimmed_mean"', {"aggregation.trim": 0.1})
    assert (experiment.aggregation.rule, experiment.aggregation.trim) == ("trimmed_mean", 0.1)


def test_overlay_changes_neither_of_its_arguments() -> None:
    base = {"rounds": 1, "method": {"name": "local"}}
    assert overlay(base, {"method.x": 1, "rounds": 2}) == {"rounds": 2, "method": {"name": "local", "x": 1}}
    assert base == {"rounds": 1, "method": {"name": "local"}}


def test_nested_tables_become_dotted_names() -> None:
    assert flat({"a": 1, "b": {"c": 2, "d": {"e": [3]}}, "f": {}}) == {"a": 1, "b.c": 2, "b.d.e": [3]}


def test_the_code_that_settings_name_is_listed() -> None:
    assert Experiment().references == []
    experiment = Experiment(
        dataset="my.data:load",
        models="cnn4,my.nets:small#head,my.nets:large",
        aggregation="my.rules:best",
        sampler="my.draws:weekly",
        execution={"engine": "my.grid:open"},
    )
    assert set(experiment.references) == {
        *("my.data:load", "my.nets:small#head", "my.nets:large", "my.rules:best", "my.draws:weekly", "my.grid:open"),
    }


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "evil:m"},
        {"method": {"name": "evil:m"}},
        {"aggregation": "evil:m"},
        {"aggregation": {"rule": "evil:m"}},
        {"execution": {"engine": "evil:m"}},
        {"sampler": "evil:m"},
        {"dataset": "evil:m"},
        {"models": ["cnn4", " evil:m "]},
    ],
)
def test_code_is_found_in_the_settings_of_a_file_too(settings: dict[str, Any]) -> None:
    assert references_in(settings) == ["evil:m"]


LIGHT = """
import sys
import {module}
heavy = {{"torch", "torchvision", "numpy", "sklearn", "flwr", *{more!r}}} & sys.modules.keys()
assert not heavy, heavy
"""


@pytest.mark.parametrize(
    ("module", "more"),
    [
        ("fedl2g.experiment.settings", ()),
        ("fedl2g.experiment.explanation", ()),
        ("fedl2g.experiment.files", ("pydantic",)),
        ("fedl2g.experiment.identity", ("pydantic",)),
        ("fedl2g.registry", ("pydantic",)),
    ],
)
def test_settings_are_imported_without_anything_heavy(module: str, more: tuple[str, ...]) -> None:
    program = LIGHT.format(module=module, more=more)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
