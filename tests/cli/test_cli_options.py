"""Options that are made from the experiment's fields: what they say, what they give, and when they are made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from fedl2g.cli import app
from fedl2g.cli.options import FIELDS, SHORT, ExperimentCommand, Settings, field_of, field_option, plugin_option
from fedl2g.experiment import Execution, Experiment

HEAVY = {"torch", "torchvision", "numpy", "sklearn", "matplotlib", "pandas", "pydantic", "rich", "flwr"}


def commands(group: click.Group, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], click.Command]:
    """Every command with the words that call it."""
    found: dict[tuple[str, ...], click.Command] = {}
    for name, command in group.commands.items():
        found[*path, name] = command
        if isinstance(command, click.Group):
            found |= commands(command, (*path, name))
    return found


ABOUT_EXPERIMENTS = {
    words: command for words, command in commands(app).items() if isinstance(command, ExperimentCommand)
}


def test_the_commands_about_experiments_are_known() -> None:
    known = {("run",), ("resume",), ("compare",), ("probe",), ("data", "show"), ("data", "schema")}
    assert set(ABOUT_EXPERIMENTS) == known


@pytest.mark.parametrize("setting", FIELDS)
def test_the_help_of_an_option_is_the_description_of_its_field(setting: str) -> None:
    table, _, name = setting.rpartition(".")
    model = {"": Experiment, "execution": Execution}[table]
    assert field_of(setting) is model.model_fields[name]
    option = field_option(setting)
    assert option.help == model.model_fields[name].description
    assert option.opts[-1] == f"--{name.replace('_', '-')}"
    assert option.opts[:-1] == ([SHORT[setting]] if setting in SHORT else [])


@pytest.mark.parametrize("words", ABOUT_EXPERIMENTS, ids=" ".join)
def test_help_shows_every_field_with_its_description(words: tuple[str, ...], fedl2g: Any) -> None:
    shown = fedl2g(*words, "--help")
    text = " ".join(shown.out.split()).replace("- ", "-")
    assert shown.code == 0
    for setting in ABOUT_EXPERIMENTS[words].fields:
        assert f"--{setting.rpartition('.')[2]}" in text
        assert " ".join((field_of(setting).description or "").split()).replace("- ", "-") in text


def given(*arguments: str, fields: tuple[str, ...] = FIELDS) -> Settings:
    """What a command's function is called with."""

    @click.command(cls=ExperimentCommand, fields=fields)
    @plugin_option
    def command(settings: Settings) -> Settings:
        return settings

    settings = command.main(list(arguments), standalone_mode=False)
    assert isinstance(settings, Settings)
    return settings


def test_only_what_was_given_is_laid_over_the_experiment() -> None:
    assert given() == Settings({}, None)
    settings = given("e.toml", "--rounds", "3", "--participation", "0.5", "--engine", "workers", "--profile")
    assert settings == Settings(
        {"participation": 0.5, "rounds": 3, "execution.engine": "workers", "execution.profile": True}, Path("e.toml")
    )
    assert given("--no-profile").overrides == {"execution.profile": False}


def test_set_has_the_last_word_and_reads_toml() -> None:
    settings = given("--rounds", "60", "--set", "rounds=70", "--set", "method.server_lr=0.5", "--set", "dataset=digits")
    assert settings.overrides == {"rounds": 70, "method.server_lr": 0.5, "dataset": "digits"}
    experiment = settings.experiment()
    assert (experiment.rounds, experiment.method.server_lr) == (70, 0.5)  # type: ignore[attr-defined]


def test_options_are_laid_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text("rounds = 7\nclients = 5\n[execution]\nprofile = true\n")
    experiment = given(str(file), "--rounds", "60", "--no-profile").experiment()
    assert (experiment.rounds, experiment.clients, experiment.execution.profile) == (60, 5, False)


def test_a_method_with_options_of_its_own_keeps_the_others() -> None:
    settings = given("--set", "method.warmup_rounds=2").with_method(" fedl2g-l:server_lr=0 ")
    method = settings.experiment().method
    assert (method.name, method.server_lr, method.warmup_rounds) == ("fedl2g-l", 0, 2)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("setting", "words", "value"),
    [
        ("batch_size", ["--batch-size", "5"], 5),
        ("reshuffle", ["--no-reshuffle"], False),
        ("noise.std", ["--std", "0.5"], 0.5),
        ("image_size", ["--image-size", "32"], 32),
        ("precision", ["--precision", "float64"], "float64"),
    ],
)
def test_any_field_can_be_given_an_option(setting: str, words: list[str], value: object) -> None:
    assert given(*words, fields=(setting,)).overrides == {setting: value}


def test_the_protocol_has_an_option() -> None:
    assert given("--protocol", "paper", "--seed", "4").experiment().choices.partition_seed == 1


def test_a_literal_shows_its_words() -> None:
    assert field_option("precision").metavar == "float32|float64"


def test_a_plugin_is_imported_before_its_method_is_asked_for(fedl2g: Any, tmp_path: Path) -> None:
    (tmp_path / "my_cli_method.py").write_text("print('imported')\n")
    assert fedl2g("methods", "--json", "--plugin", "my_cli_method.py").out.startswith("imported\n")


@pytest.mark.parametrize("arguments", [["--help"], ["data", "--help"], ["deploy", "--help"], ["paper", "--help"]])
def test_help_imports_all_command_modules_and_nothing_heavy(arguments: list[str]) -> None:
    program = f"""
import pkgutil, sys
sys.argv = ["fedl2g", *{arguments!r}]
import fedl2g.cli
try:
    fedl2g.cli.main()
except SystemExit as end:
    assert not end.code
modules = [f"fedl2g.cli.{{module.name}}" for module in pkgutil.iter_modules(fedl2g.cli.__path__)]
assert not set(modules) - sys.modules.keys(), "a module of a command that nobody can call"
assert len(modules) > 10
assert not {HEAVY!r} & sys.modules.keys(), {HEAVY!r} & sys.modules.keys()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_help_of_a_command_does_not_load_torch() -> None:
    program = """
import sys
sys.argv = ["fedl2g", "run", "--help"]
from fedl2g.cli import main
try:
    main()
except SystemExit:
    pass
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", commands(app), ids=" ".join)
def test_every_parameter_of_every_command_has_help(words: tuple[str, ...]) -> None:
    command = commands(app)[words]
    assert command.get_short_help_str()
    for parameter in command.get_params(click.Context(command)):
        assert isinstance(parameter, click.Option | click.Argument)
        assert parameter.help, parameter.name


def test_a_short_option_means_the_same_everywhere() -> None:
    meanings: dict[str, set[str]] = {}
    for command in commands(app).values():
        for parameter in command.get_params(click.Context(command)):
            short = [name for name in parameter.opts if len(name) == 2 and name.startswith("-")]
            for name in short:
                meanings.setdefault(name, set()).add(next(opt for opt in parameter.opts if opt.startswith("--")))
            long = [name for name in parameter.opts if name.startswith("--")]
            for name in set(long) & {"--out", "--quiet", "--jobs", "--set", "--method", "--methods"}:
                assert short, f"{command.name} {name} has no short option"
    assert meanings.pop("-m") == {"--method", "--methods"}
    assert all(len(long) == 1 for long in meanings.values()), meanings


def test_the_help_of_engine_names_all_engines(fedl2g: Any) -> None:
    text = " ".join(fedl2g("run", "-h").out.split())
    assert all(f"{name}:" in text for name in ("inline", "workers", "flower"))


@pytest.mark.parametrize("words", [("resume",), ("export",), ("report",), ("plot",), ("show",), ("deploy", "check")])
def test_commands_that_read_what_came_from_elsewhere_ask_for_trust(words: tuple[str, ...]) -> None:
    names = {parameter.name for parameter in commands(app)[words].params}
    assert "trust" in names
