"""Shell completion: the scripts, and what they complete."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from fedl2g.cli import app
from fedl2g.cli.completion import PROGRAM, VARIABLE


def completed(*words: str) -> list[str]:
    """What the shell suggests for the last word."""
    found = ShellComplete(app, {}, PROGRAM, VARIABLE).get_completions(list(words[:-1]), words[-1])
    return [item.value for item in found]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(fedl2g: Any, shell: str) -> None:
    printed = fedl2g("completion", shell)
    assert (printed.code, printed.err) == (0, "")
    assert f"{VARIABLE}={shell}_complete" in printed.out
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=printed.out, text=True, check=True)  # it parses


def test_an_unknown_shell(fedl2g: Any) -> None:
    outcome = fedl2g("completion", "csh")
    assert outcome.code == 2
    assert "'csh' is not one of 'bash', 'zsh', 'fish'" in outcome.sentence


def test_commands_options_and_names_are_completed() -> None:
    assert completed("co") == ["compare", "completion"]
    assert "--rounds" in completed("run", "--ro")
    assert completed("run", "--method", "fedl2g-") == ["fedl2g-l", "fedl2g-f"]
    assert completed("compare", "--methods", "local,fedp") == ["local,fedproto"]
    assert completed("run", "--models", "small_cnn,htfe9") == ["small_cnn,htfe9"]
    assert completed("run", "--dataset", "cifar") == ["cifar10", "cifar100"]
    assert completed("run", "--engine", "") == ["inline", "workers", "flower"]
    assert completed("explain", "execution.check") == ["execution.checkpoint_every"]
    assert completed("paper", "run", "warm") == completed("paper", "show", "warm") == ["warmup"]
    assert completed("paper", "run", "data", "--scale", "s") == ["small", "smoke"]
    assert completed("compare", "--track", "mlflow,w") == ["mlflow,wandb"]
    assert completed("list", "--method", "fedl2g-") == ["fedl2g-l", "fedl2g-f"]
    assert completed("list", "--dataset", "cifar") == ["cifar10", "cifar100"]
    assert completed("run", "--set", "execution.check") == ["execution.checkpoint_every="]


def test_the_program_answers_the_shell(fedl2g: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "fedl2g sho")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert fedl2g().out == "plain,show\n"
