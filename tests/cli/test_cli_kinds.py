"""Data of each kind through the whole command: run, export, predict, probe, report, with the names of the classes."""

from __future__ import annotations

import csv
import io
import json
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch

COUNT = 48


@dataclass(frozen=True)
class Kind:
    """How data of a kind is made and named on the command line, and the input that is predicted again."""

    make: Callable[[Path], Any]
    options: tuple[str, ...]
    again: str
    form: tuple[int, ...]


def signals(folder: Path) -> Any:
    random = np.random.default_rng(0)
    labels = np.array(["walk", "rest"])[np.arange(COUNT) % 2]
    inputs = random.normal(3.0, 1.0, (COUNT, 2, 16)) + np.where(labels == "walk", 4.0, 0.0)[:, None, None]
    np.savez(folder / "motion.npz", inputs=inputs, labels=labels, groups=np.array(["ann", "bob"]).repeat(COUNT // 2))
    np.save(folder / "again.npy", inputs[:6])
    return labels[:6]


def table(folder: Path) -> Any:
    random = np.random.default_rng(0)
    ill = np.arange(COUNT) % 2
    frame = pd.DataFrame(
        {
            "age": random.normal(40 + 30 * ill, 2),
            "sex": np.array(["f", "m"])[random.integers(0, 2, COUNT)],
            "hospital": np.array(["north", "south"]).repeat(COUNT // 2),
            "state": np.array(["well", "ill"])[ill],
        }
    )
    frame.loc[20, "age"] = None
    frame.to_csv(folder / "patients.csv", index=False)
    frame.drop(columns="state").head(6).assign(sex="x").to_csv(folder / "again.csv", index=False)
    return frame["state"].to_numpy()[:6]


def texts(folder: Path) -> Any:
    label = np.array(["sport", "money"])[np.arange(COUNT) % 2]
    words = np.where(label == "sport", "the goal of the match", "shares and banks fell")
    frame = pd.DataFrame({"title": words, "body": [f"report {n}" for n in range(COUNT)], "topic": label})
    frame.assign(paper=np.array(["post", "times"]).repeat(COUNT // 2)).to_csv(folder / "news.csv", index=False)
    frame[["title", "body"]].head(6).to_csv(folder / "again.csv", index=False)
    return label[:6]


KINDS = {
    "table": Kind(
        table, ("--dataset", "patients.csv", "--label", "state", "--partition", "by:hospital"),
        "again.csv", (2,),
    ),
    "signal": Kind(
        signals, ("--dataset", "motion.npz", "--models", "sensor_cnn,sensor_gru", "--partition", "by:group"),
        "again.npy", (2, 16),
    ),
    "text": Kind(
        texts, ("--dataset", "news.csv", "--text", "title,body", "--label", "topic", "--ignore", "paper", "--partition",
                "iid", "--models", "text_bag,text_transformer"),
        "again.csv", (7,),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.load` is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_through_the_whole_command(kind: str, fedl2g: Any, tmp_path: Path) -> None:
    about = KINDS[kind]
    truth = about.make(tmp_path)
    ran = fedl2g(
        "run", *about.options, "--clients", "2", "--rounds", "12", "--method", "fedl2g-f", "--set",
        "method.warmup_rounds=2", "--set", "client_lr=0.05", "--quiet", "--out", "run",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert json.loads((tmp_path / "run" / "result.json").read_text())["best_accuracy"] > 0.8

    exported = fedl2g("export", "run", "--client", "1", "--which", "last", "--out", "model")
    assert exported.code == 0, exported.err
    described = json.loads((tmp_path / "model" / "model.json").read_text())
    assert (described["kind"], described["input"][1:]) == (kind, list(about.form))
    assert sorted(described["classes"]) == sorted(set(truth))

    predicted = fedl2g("predict", "model", about.again)
    assert predicted.code == 0, predicted.err
    rows = list(csv.DictReader(io.StringIO(predicted.out)))
    assert [row["class"] for row in rows] == truth.tolist()
    assert sorted(name for name in rows[0] if name.startswith("score ")) == sorted(f"score {c}" for c in set(truth))

    shape = (2, *about.form)
    samples = torch.ones(shape, dtype=torch.int64 if kind == "text" else torch.float32)
    wanted = torch.jit.load(tmp_path / "model" / "model.torchscript")(samples)  # type: ignore[no-untyped-call]
    session = onnxruntime.InferenceSession(tmp_path / "model" / "model.onnx", providers=["CPUExecutionProvider"])
    (scores,) = session.run(None, {"inputs": samples.numpy()})
    torch.testing.assert_close(torch.from_numpy(scores), wanted, rtol=1e-4, atol=1e-4)

    skewed = [*about.options, "--partition", "dirichlet:0.2"]  # the probe guesses which classes a client has
    probed = fedl2g("probe", *skewed, "--clients", "4", "--rounds", "2", "--methods", "fedproto", "--quiet")
    assert probed.code == 0, probed.err
    shown = fedl2g("data", "show", *without_models(about.options), "--clients", "2")
    assert (shown.code, truth[0] in shown.out) == (0, True), shown.err
    assert fedl2g("report", "run", "-o", "page.html").code == 0
    assert truth[0] in (tmp_path / "page.html").read_text()


def without_models(options: tuple[str, ...]) -> tuple[str, ...]:
    """The options of a command that takes no networks."""
    start = options.index("--models") if "--models" in options else len(options)
    return options[:start] + options[start + 2 :]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("run", "--dataset", "patients.csv"), "no column is named as its label; choose one of age, sex, hospital"),
        (("run", "--dataset", "patients.csv", "--label", "stat"), "has no column 'stat'; did you mean 'state'?"),
        (("run", "--dataset", "patients.csv", "--label", "state", "--models", "small"), "small_cnn takes images, but"),
        (("run", "--dataset", "patients.csv", "--label", "state", "--partition", "by:town"), "has no column 'town'"),
        (("run", "--dataset", "hf:"), "names no dataset; expected hf:NAME"),
        (("run", "--models", "timm:resnt18"), "no network has this name; did you mean 'resnet18'?"),
        (("run", "--models", "torchvision:resnt18"), "no network has this name; did you mean 'resnet18'?"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence(arguments: tuple[str, ...], sentence: str, fedl2g: Any, tmp_path: Path) -> None:
    table(tmp_path)
    found = fedl2g(*arguments, "--clients", "2", "--rounds", "2", "--method", "local", "--quiet")
    assert (found.code, sentence in found.sentence) == (2, True), found.err
    assert not (tmp_path / "runs").exists()


def test_the_schema_of_data_is_printed_for_a_federation(fedl2g: Any, tmp_path: Path) -> None:
    table(tmp_path)
    printed = fedl2g("data", "schema", "--dataset", "patients.csv", "--label", "state", "--ignore", "hospital")
    assert printed.code == 0
    assert tomllib.loads(printed.out) == {
        "federation": {
            "classes": ["ill", "well"],
            "inputs": {"kind": "table", "shape": [2], "columns": {"age": "number", "sex": ["f", "m"]}},
        }
    }
