"""Wrong input: one sentence that names the field, the value, what is allowed and the nearest name; exit code 2."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "--method", "fedl2g"], ["'fedl2g'", "fedl2g-l"]),
        (["run", "--set", "clinets=3"], ["'clinets'", "did you mean 'clients'"]),
        (["run", "--set", "method.server_rl=3"], ["'method.server_rl'", "server_lr"]),
        (["run", "--set", "execution.wokers=3"], ["'execution.wokers'", "workers"]),
        (["run", "--set", "method.quiz_size=0"], ["method.quiz_size", "0"]),
        (["run", "--set", "method.server_lr=-1"], ["method.server_lr", "-1"]),
        (["run", "--set", "method.guide_init=ones"], ["method.guide_init", "'ones'", "orthogonal"]),
        (["run", "--set", "seed"], ["'seed'", "key=value"]),
        (["run", "--set", "rounds.x=1"], ["rounds", "whole number"]),
        (["run", "--clients", "0"], ["clients", "0"]),
        (["run", "--clients", "three"], ["--clients", "three"]),
        (["run", "--participation", "1.5"], ["participation", "1.5"]),
        (["run", "--rounds", "-1"], ["rounds", "-1"]),
        (["run", "--seed", "-1"], ["seed", "-1"]),
        (["run", "--set", "client_lr=nan"], ["client_lr", "nan"]),
        (["run", "--engine", "worker"], ["execution.engine", "'worker'", "workers"]),
        (["run", "--device", "gpu"], ["device", "'gpu'", "cuda"]),
        (["run", "--device", "cuda:7"], ["device", "'cuda:7'", "cpu"]),
        (["run", "--device", "mps"], ["device", "'mps'", "cpu"]),
        (["run", "--models", "htfe5"], ["htfe5", "htfe"]),
        (["run", "--models", ""], ["model"]),
        (["run", "--partition", "dirchlet:0.1"], ["dirchlet", "dirichlet"]),
        (["run", "--partition", "dirichlet:0"], ["dirichlet"]),
        (["run", "--partition", "pathological:x"], ["pathological"]),
        (["run", "--partition", "file:nowhere.json"], ["nowhere.json"]),
        (["run", "--partition", "domain"], ["domain"]),
        (["run", "--partition", "pathological:1", "--clients", "3"], ["pathological:1"]),
        (["run", "--dataset", "cifra10"], ["cifra10", "cifar10"]),
        (["run", "--dataset", "nowhere.npz"], ["nowhere.npz"]),
        (["run", "--samples", "5000"], ["5000"]),
        (["run", "--method", "lg-fedavg", "--models", "htm10"], ["htm10", "head"]),
        (["run", "--method", "fedgh", "--models", "htm10"], ["htm10", "head"]),
        (["run", "--plugin", "nowhere.py"], ["nowhere.py"]),
        (["run", "--models", "no_such_module:network"], ["no_such_module"]),
        (["run", "nowhere.toml"], ["nowhere.toml"]),
        (["run", "--rouns", "3"], ["--rouns", "--rounds"]),
        (["rnu"], ["rnu"]),
        (["resume", "nowhere"], ["nowhere"]),
        (["show", "nowhere"], ["nowhere"]),
        (["list", "nowhere"], ["nowhere"]),
        (["plot", "nowhere"], ["nowhere"]),
        (["explain", "roudns"], ["'roudns'", "'rounds'"]),
        (["compare", "--methods", "local,fedl2gf"], ["fedl2gf", "fedl2g-f"]),
        (["compare", "--methods", "local,fedproto, local"], ["local appears 2 times"]),
        (["compare", "--methods", "local", "--set", "method.server_lr=1"], ["method.server_lr"]),
        (["compare", "--methods", "fedl2g-f:server_l=1"], ["server_l", "server_lr"]),
        (["data", "show", "--partition", "idd"], ["idd", "iid"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_input_is_one_sentence(fedl2g, tmp_path: Path, arguments: list[str], says: list[str]) -> None:
    outcome = fedl2g(*arguments)
    assert outcome.code == 2
    for text in says:
        assert text in outcome.sentence
    assert outcome.out == ""
    assert list(tmp_path.iterdir()) == []  # nothing half-written


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rounds = ", "not valid TOML"),
        ("round = 3", "'round'"),
        ("[method]\nname = 'local'\nserver_lr = 1", "method.server_lr"),
        ("[execution]\nengine = 3", "execution.engine"),
        ("method = 3", "method"),
        ("clients = 'many'", "clients"),
    ],
)
def test_wrong_file_is_one_sentence(fedl2g, tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "wrong.toml").write_text(text)
    outcome = fedl2g("run", "wrong.toml")
    assert outcome.code == 2
    assert says in outcome.sentence
    assert [path.name for path in tmp_path.iterdir()] == ["wrong.toml"]


def test_an_existing_folder_is_not_taken_over(fedl2g, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("keep me")
    outcome = fedl2g("run", "--out", "mine", "--quiet")
    assert outcome.code == 2
    assert "mine" in outcome.sentence
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["letter.txt"]


SMALL = ["-d", "digits", "--samples", "60", "-c", "2", "--partition", "iid", "--models", "small_cnn"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["data", "show", "-d", "digits", "--samples", "60", "-c", "2", "--partition", "iid", "-o", "file/x.png", "-q"],
        ["paper", "show", "distributions", "--scale", "smoke", "--to", "file/x"],
        ["paper", "run", "distributions", "-o", "file/x"],
        ["deploy", "new", "file/x", "--site", "north", "--site", "south", "--class", "a", "--class", "b"],
        ["run", *SMALL, "-m", "local", "-r", "1", "-q", "-o", "file/x"],
        ["compare", *SMALL, "-m", "local", "-r", "1", "-q", "-o", "file/x"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_a_place_that_cannot_be_written_is_one_sentence(fedl2g, tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "file").write_text("not a folder")
    outcome = fedl2g(*arguments)
    assert outcome.code == 2
    assert "file/x" in outcome.sentence
    assert re.search("cannot be (written|created)", outcome.sentence)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
