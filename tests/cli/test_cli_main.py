"""What the command does around the commands: help, version, errors, interruptions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import click
import pytest

import fedl2g as package
from fedl2g.cli import app
from fedl2g.cli.groups import first_sentence
from fedl2g.errors import FedL2GError


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make `fedl2g list` fail with an error of our choice."""

    def fail(error: BaseException) -> None:
        def callback(**_: object) -> None:
            raise error

        monkeypatch.setattr(app.commands["list"], "callback", callback)

    return fail


def test_the_version(fedl2g: Any) -> None:
    assert fedl2g("--version").out == f"{package.__version__}\n"


def test_help_lists_the_commands_in_their_order(fedl2g: Any) -> None:
    shown = fedl2g("--help")
    assert (shown.code, shown.err) == (0, "")
    lines = shown.out.partition("Train:\n")[2].splitlines()
    listed = [line.split()[0] for line in lines if line[:2] == "  " and line[2:3].strip()]
    assert listed == list(app.commands)
    assert {name for names in app.tasks.values() for name in names} == set(listed)  # each has a task
    assert listed[:3] == ["run", "resume", "compare"]


def test_help_has_whole_sentences(fedl2g: Any) -> None:
    for arguments in ((), ("data",), ("deploy",), ("paper",)):
        text = fedl2g(*arguments, "-h").out
        assert "..." not in text.partition("Options:")[2]
    words = " ".join(fedl2g("-h").out.split())
    for command in app.commands.values():
        assert first_sentence(command.help or "") in words


def _commands(command: click.Command, *names: str) -> Iterator[tuple[str, click.Command]]:
    yield " ".join(names), command
    if isinstance(command, click.Group):
        for name, one in command.commands.items():
            yield from _commands(one, *names, name)


def test_the_help_of_every_option_is_a_sentence_and_a_letter_means_one_thing() -> None:
    letters: dict[str, set[str]] = {}
    for names, command in _commands(app):
        for one in command.get_params(click.Context(command, help_option_names=["-h", "--help"])):
            text = getattr(one, "help", None)
            assert text, (names, one.name)
            assert text[:1].isupper() or text.startswith("."), (names, one.name, text)
            assert text.partition("  [")[0].endswith("."), (names, one.name, text)
            for letter in (name for name in one.opts if len(name) == 2):
                letters.setdefault(letter, set()).add(max(one.opts, key=len).removesuffix("s"))
    assert {letter: found - {"--output"} for letter, found in letters.items() if len(found - {"--output"}) != 1} == {}


@pytest.mark.parametrize("arguments", [(), ("data",), ("deploy",)])
def test_without_a_command_the_help_goes_to_stdout(fedl2g: Any, arguments: tuple[str, ...]) -> None:
    bare = fedl2g(*arguments)
    assert (bare.code, bare.err) == (0, "")
    assert bare.out == fedl2g(*arguments, "--help").out


def test_paper_alone_lists(fedl2g: Any) -> None:
    bare = fedl2g("paper")
    assert (bare.code, bare.err) == (0, "")
    assert "experiment" in bare.out


@pytest.mark.parametrize("arguments", [(), ("run",), ("data", "show"), ("paper", "run")])
def test_help_has_a_short_name(fedl2g: Any, arguments: tuple[str, ...]) -> None:
    short = fedl2g(*arguments, "-h")
    assert (short.code, short.err) == (0, "")
    assert short.out == fedl2g(*arguments, "--help").out
    assert short.out.startswith(" ".join(["Usage: fedl2g", *arguments]))
    assert "\\" not in short.out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("runn",), "runn: no such command; did you mean run? see `fedl2g -h`"),
        (("list", "--jsn"), "--jsn: no such option; did you mean --json? see `fedl2g list -h`"),
        (("list", "--zzzzzz"), "--zzzzzz: no such option; see `fedl2g list -h`"),
        (("paper", "run"), "NAME: must be given; see `fedl2g paper run -h`"),
        (("run", "-c", "three"), "--clients: 'three' is not a valid integer; see `fedl2g run -h`"),
        (("compare", "-j", "0"), "--jobs: 0 is not in the range x>=1; see `fedl2g compare -h`"),
        (("show", "a", "b"), "got unexpected extra argument (b); see `fedl2g show -h`"),
    ],
)
def test_what_click_finds_is_said_like_everything_else(fedl2g: Any, arguments: tuple[str, ...], sentence: str) -> None:
    outcome = fedl2g(*arguments)
    assert (outcome.code, outcome.sentence) == (2, f"fedl2g: {sentence}")
    assert outcome.sentence.lower().count("did you mean") <= 1


def test_an_error_is_one_sentence_and_its_exit_code(fedl2g: Any, failing: Any) -> None:
    class Peculiar(FedL2GError):
        exit_code = 7

    failing(Peculiar("rounds: 0 is not allowed; expected at least 1"))
    outcome = fedl2g("list")
    assert outcome.code == 7
    assert outcome.sentence == "fedl2g: rounds: 0 is not allowed; expected at least 1"


def test_a_fault_of_ours_keeps_its_traceback(fedl2g: Any, failing: Any) -> None:
    failing(ZeroDivisionError("a fault"))
    with pytest.raises(ZeroDivisionError):
        fedl2g("list")


def test_an_interruption_is_one_sentence(fedl2g: Any, failing: Any) -> None:
    failing(KeyboardInterrupt())
    outcome = fedl2g("list")
    assert outcome.code == 130
    assert outcome.sentence == "fedl2g: interrupted"  # commands that train say how to go on


def test_a_question_answered_with_no_is_no_error_of_ours(fedl2g: Any, failing: Any) -> None:
    failing(click.Abort())
    outcome = fedl2g("list")
    assert (outcome.code, outcome.sentence) == (1, "fedl2g: nothing was started")


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "fedl2g", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{package.__version__}\n"
