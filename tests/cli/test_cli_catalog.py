"""`methods`, `models`, `datasets`, `explain` and `data`: what there is to choose from."""

from __future__ import annotations

import json
from pathlib import Path


def test_what_there_is(fedl2g) -> None:
    names = [method["name"] for method in json.loads(fedl2g("methods", "--json").out)]
    assert names[:10] == [
        "local", "lg-fedavg", "fedgh", "fml", "fedkd", "fedmrl", "feddistill", "fedproto", "fedl2g-l", "fedl2g-f",
    ]  # fmt: skip
    models = json.loads(fedl2g("models", "--no-time", "--json", "--quiet").out)
    sizes = {row["name"]: (row["parameters"], row["feature_width"]) for row in models["architectures"]}
    assert sizes["cnn4"] == (873_408 + 513 * 100, 512)
    assert sizes["resnet50"][1] == 2048
    assert sizes["resnet4"][1] == 64
    assert "htm10" in models["groups"]
    assert {row["name"] for row in json.loads(fedl2g("datasets", "--json").out)} == {
        "digits", "cifar10", "cifar100", "flowers102", "tiny-imagenet", "domainnet",
    }  # fmt: skip
    for command in ("methods", "datasets"):
        assert fedl2g(command).code == 0
    explained = fedl2g("explain").out
    for setting in ("rounds:", "method.quiz_size:", "execution.engine:", "partition:"):
        assert setting in explained
    assert fedl2g("--version").out.strip()


def test_data_show_draws_who_holds_what(fedl2g, tmp_path: Path) -> None:
    arguments = ("data", "show", "--partition", "pathological:2", "--clients", "10", "--quiet")
    shown = json.loads(fedl2g(*arguments, "--json", "-o", "bubbles.png").out)
    assert sum(shown["sizes"]) == 1797
    assert all(sum(count > 0 for count in row) <= 2 for row in shown["counts"])
    assert (tmp_path / "bubbles.png").stat().st_size > 5000
    assert len(fedl2g(*arguments).out.splitlines()) > 10
