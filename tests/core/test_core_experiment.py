"""Experiments: settings in and out, overrides, and one sentence for whatever is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedl2g.errors import SettingError
from fedl2g.experiment import Execution, Experiment, documented_fields, explain, parse_override

ROUND_TRIPS = [
    {},
    {"method": "local", "rounds": 3, "samples": 100, "image_size": 8},
    {"method": {"name": "fedl2g-l", "server_lr": 1e-05, "guide_init": "orthogonal"}, "client_lr": 1e-7},
    {"partition": "pathological:2", "models": ["cnn4", "resnet10"], "seed": 2**32 - 1, "reshuffle": False},
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
    assert (e.method.name, e.method.server_lr, e.method.warmup_rounds, e.method.quiz_size) == ("fedl2g-f", 100, 50, 10)
    assert Experiment(method="fedl2g-l").method.server_lr == 0.1
    assert (e.participation, e.patience, e.method.guide_init) == (1.0, 100, "normal")


def test_overrides_lie_over_the_file() -> None:
    text = 'rounds = 5\nclients = 3\n[method]\nname = "fedl2g-l"\nserver_lr = 0.5\nquiz_size = 4\n'
    e = Experiment.from_toml(text, {"rounds": 7, "method.server_lr": 2, "execution.workers": 3})
    assert (e.rounds, e.clients, e.method.server_lr, e.method.quiz_size, e.execution.workers) == (7, 3, 2, 4, 3)


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


UNKNOWN = [
    ({"round": 5}, "'round'", "'rounds'"),
    ({"clints": 5}, "'clints'", "'clients'"),
    ({"execution": {"worker": 2}}, "'execution.worker'", "'workers'"),
    ({"method": {"name": "fedl2g-f", "server_rl": 1}}, "'method.server_rl'", "'server_lr'"),
    ({"method": {"name": "local", "server_lr": 1}}, "'method.server_lr'", ""),
    ({"method": "fedl2f-l"}, "'fedl2f-l'", "'fedl2g-l'"),
    ({"models": "smal"}, "'smal'", "'small'"),
    ({"partition": "dirichle:0.1"}, "'dirichle:0.1'", "'dirichlet'"),
]


@pytest.mark.parametrize(("wrong", "named", "hint"), UNKNOWN)
def test_an_unknown_name_is_one_sentence_with_the_nearest_known(wrong: dict[str, Any], named: str, hint: str) -> None:
    with pytest.raises(SettingError) as caught:
        Experiment(**wrong)
    assert named in str(caught.value)
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)


WRONG = [
    ({"rounds": 0}, "rounds"),
    ({"rounds": "many"}, "rounds"),
    ({"rounds": None}, "rounds"),
    ({"rounds": 2.5}, "rounds"),
    ({"clients": -1}, "clients"),
    ({"participation": 0}, "participation"),
    ({"participation": 1.01}, "participation"),
    ({"participation": float("nan")}, "participation"),
    ({"client_lr": float("inf")}, "client_lr"),
    ({"client_lr": 0}, "client_lr"),
    ({"test_fraction": 1}, "test_fraction"),
    ({"seed": -1}, "seed"),
    ({"seed": 2**32}, "seed"),
    ({"batch_size": 0}, "batch_size"),
    ({"precision": "float16"}, "precision"),
    ({"device": "gpu"}, "device"),
    ({"models": ""}, "model"),
    ({"models": [1]}, "models"),
    ({"dataset": ""}, "dataset"),
    ({"image_size": 4}, "image_size"),
    ({"samples": 1}, "samples"),
    ({"method": 3}, "method"),
    ({"method": {"name": 3}}, "method.name"),
    ({"method": {"name": "fedl2g-f", "server_lr": -1}}, "method.server_lr"),
    ({"method": {"name": "fedl2g-f", "server_lr": float("inf")}}, "method.server_lr"),
    ({"method": {"name": "fedl2g-f", "guide_init": "ones"}}, "method.guide_init"),
    ({"method": {"name": "fedl2g-f", "quiz_size": 0}}, "method.quiz_size"),
    ({"execution": {"engine": "cloud"}}, "execution.engine"),
    ({"execution": {"workers": 0}}, "execution.workers"),
    ({"execution": "workers"}, "execution"),
    ({"partition": "dirichlet:-1"}, "dirichlet:-1"),
]


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("chanels_last", "Did you mean 'channels_last'"),
        ("cnn4=auto", "'auto' is not known. Use"),
        ("channels_last,contiguous", "does not say which architecture is channels_last; expected each"),
        (
            "cnn5=channels_last",
            "no client has the architecture 'cnn5'. Did you mean 'cnn4'? Expected some of cnn4, res",
        ),
        ("cnn4=channels_last,small_cnn=contiguous", "no client has the architecture 'small_cnn'"),
        ("cnn4=channels_last,cnn4=contiguous", "names 'cnn4' twice"),
    ],
)
def test_a_layout_that_would_do_nothing_is_refused(layout: str, said: str) -> None:
    with pytest.raises(SettingError) as caught:
        Experiment(models="cnn4,resnet18", layout=layout)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_layouts_are_given_by_architecture() -> None:
    assert Experiment(models="cnn4,resnet18", layout="cnn4=channels_last").channels_last == {"cnn4"}
    deployed = Experiment(dataset="sites", models="cnn4", layout="resnet18=channels_last")  # a site's own model
    assert deployed.channels_last == {"resnet18"}


@pytest.mark.parametrize(("wrong", "field"), WRONG)
def test_a_wrong_value_is_one_sentence_that_names_the_field_and_the_value(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(SettingError) as caught:
        Experiment(**wrong)
    message = str(caught.value)
    assert field in message
    assert "\n" not in message
    value = next(iter(wrong.values()))
    if isinstance(value, int | float):
        assert repr(value) in message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("text", ["rounds = ", "rounds = 5\nrounds = 6", "[method", "\x00"])
def test_text_that_is_not_toml_is_one_sentence(text: str) -> None:
    with pytest.raises(SettingError, match="is not valid TOML"):
        Experiment.from_toml(text)


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"cannot read the experiment file .*missing\.toml: No such file"):
        Experiment.from_file(tmp_path / "missing.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingError, match="it is not text"):
        Experiment.from_file(tmp_path / "binary.toml")
    with pytest.raises(SettingError, match="cannot read"):
        Experiment.from_file(tmp_path)


def test_an_override_into_a_plain_value_is_refused() -> None:
    with pytest.raises(SettingError, match="single value"):
        Experiment.from_toml("rounds = 5", {"rounds.more": 1})


def test_the_fingerprint_ignores_how_and_notices_what() -> None:
    base = Experiment()
    how = {"engine": "workers", "workers": 5, "checkpoint_every": 1}
    assert Experiment(execution=how).fingerprint == base.fingerprint
    assert base.execution == Execution()
    changes: list[dict[str, Any]] = [
        {"seed": 1},
        {"rounds": 999},
        {"method": "fedl2g-l"},
        {"method": {"name": "fedl2g-f", "server_lr": 99}},
        {"partition": "iid"},
        {"models": "htfe4"},
        {"precision": "float64"},
        {"samples": 500},
    ]
    prints = {Experiment(**change).fingerprint for change in changes}
    assert len(prints) == len(changes)
    assert base.fingerprint not in prints


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


def test_every_setting_is_documented() -> None:
    documented = dict(documented_fields())
    names = set(Experiment.model_fields) | {f"execution.{name}" for name in Execution.model_fields}
    names |= {f"method.{name}" for name in ("server_lr", "warmup_rounds", "quiz_size", "guide_init")}
    assert names <= documented.keys()
    assert all(not text.startswith("None") and len(text) > 15 for text in documented.values())
    assert "default 10" in explain("batch_size")
    with pytest.raises(SettingError, match="Did you mean 'rounds'"):
        explain("round")
