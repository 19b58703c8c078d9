"""`methods`, `models`, `datasets`, `explain` and `data`: what there is to choose from."""

from __future__ import annotations

import json
import re
from pathlib import Path


def test_what_there_is(fedl2g) -> None:
    names = [method["name"] for method in json.loads(fedl2g("methods", "--json").out)]
    assert names[:12] == [
        "local", "lg-fedavg", "fedgh", "fml", "fedkd", "fedmrl", "feddistill", "fedproto", "fedtgp",
        "fedgen", "fedl2g-l", "fedl2g-f",
    ]  # fmt: skip
    models = json.loads(fedl2g("models", "--no-time", "--json", "--quiet").out)
    sizes = {row["name"]: (row["parameters"], row["feature_width"]) for row in models["architectures"]}
    assert sizes["cnn4"] == (873_408 + 513 * 100, 512)
    assert sizes["resnet50"][1] == 2048
    assert sizes["resnet4"][1] == 64
    assert "htm10" in models["groups"]
    assert {row["name"] for row in json.loads(fedl2g("datasets", "--json").out)} == {
        "digits", "cifar10", "cifar100", "flowers102", "tiny-imagenet", "domainnet",
        "har", "pamap2", "breast-cancer", "wine", "ag_news",
    }  # fmt: skip
    for command in ("methods", "datasets"):
        assert fedl2g(command).code == 0
    explained = fedl2g("explain").out
    for setting in ("rounds:", "method.quiz_size:", "execution.engine:", "partition:"):
        assert setting in explained
    assert fedl2g("--version").out.strip()


def test_a_method_is_described_by_its_name(fedl2g) -> None:
    shown = fedl2g("methods", "fedl2g-l").out
    for text in (
        "CE(f(x), y) + MSE(z, G[y])", "guiding gradients", "it reports: alignment", "rms_step: ", "default 0.3",
        "preset=recommended",
    ):  # fmt: skip
        assert text in shown
    assert "It has no options." in fedl2g("methods", "local").out
    unknown = fedl2g("methods", "fedl2g-k")
    assert unknown.code == 2
    assert "did you mean 'fedl2g-" in unknown.err


def test_every_method_says_when_to_use_it_in_two_sentences(fedl2g) -> None:
    for method in json.loads(fedl2g("methods", "--json").out)[:12]:
        described = json.loads(fedl2g("methods", method["name"], "--json").out)
        assert described["options"] == method["options"]
        assert described["sends"]
        assert described["description"] != described["summary"]
        sentences = re.split(r"(?<=[.])\s", described["advice"])
        assert len(sentences) == 2, described["advice"]
        named = re.findall(r"(\w+)=", described["advice"]) + re.findall(r"`(\w+)`", described["advice"])
        assert set(named) - {"head"} <= set(method["options"])  # no advice on options that do not exist


OWN_METHOD = '''"""Mine: loss CE(f(x), y), nothing else."""

from fedl2g.methods.base import ClientHalf, Options, ServerHalf
from fedl2g.methods.registry import register_method


class MineOptions(Options):
    """A method of my own."""

    name: str = "mine"
    push: float = 2.0


class MineClient(ClientHalf[MineOptions]):
    pass


register_method("mine", options=MineOptions, server=ServerHalf, client=MineClient)
'''


def test_a_users_method_is_described_too(fedl2g, tmp_path: Path, registries_as_found: None) -> None:
    (tmp_path / "mine.py").write_text(OWN_METHOD)
    shown = fedl2g("methods", "mine", "--plugin", str(tmp_path / "mine.py")).out
    for text in (
        "mine: A method of my own.",
        "Mine: loss CE(f(x), y), nothing else.",
        "push: No description.",
        "default 2.0",
    ):
        assert text in shown


def test_data_show_draws_who_holds_what(fedl2g, tmp_path: Path) -> None:
    arguments = ("data", "show", "--partition", "pathological:2", "--clients", "10", "--quiet")
    shown = json.loads(fedl2g(*arguments, "--json", "-o", "bubbles.png").out)
    assert sum(shown["sizes"]) == 1797
    assert all(sum(count > 0 for count in row) <= 2 for row in shown["counts"])
    assert (tmp_path / "bubbles.png").stat().st_size > 5000
    assert len(fedl2g(*arguments).out.splitlines()) > 10
