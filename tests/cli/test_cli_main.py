"""What the command does around the commands: help, version, errors, interruptions."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import click
import pytest

import fedl2g as package
from fedl2g.cli import app
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
    listed = shown.out.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in listed] == [
        "run", "resume", "compare", "probe", "list", "show", "report", "plot", "export", "methods", "models",
        "datasets", "explain", "data", "deploy", "paper",
    ]  # fmt: skip


@pytest.mark.parametrize("arguments", [(), ("data",), ("deploy",)])
def test_without_a_command_the_usage_goes_to_stderr(fedl2g: Any, arguments: tuple[str, ...]) -> None:
    bare = fedl2g(*arguments)
    assert (bare.code, bare.out) == (2, "")
    assert bare.err.startswith("fedl2g: Usage: ")
    assert "Commands:" in bare.err


def test_paper_alone_lists(fedl2g: Any) -> None:
    bare = fedl2g("paper")
    assert (bare.code, bare.err) == (0, "")
    assert "experiment" in bare.out


def test_help_has_one_name(fedl2g: Any) -> None:
    short = fedl2g("-h")
    assert (short.code, short.out) == (2, "")
    assert "'-h'" in short.sentence


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


def test_an_interruption_says_how_to_go_on(fedl2g: Any, failing: Any) -> None:
    failing(KeyboardInterrupt())
    outcome = fedl2g("list")
    assert outcome.code == 130
    assert "fedl2g resume" in outcome.sentence


def test_a_question_answered_with_no_is_no_error_of_ours(fedl2g: Any, failing: Any) -> None:
    failing(click.Abort())
    outcome = fedl2g("list")
    assert (outcome.code, outcome.sentence) == (1, "fedl2g: nothing was started")


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "fedl2g", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{package.__version__}\n"
