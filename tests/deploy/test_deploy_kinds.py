"""A federation with data of another kind than images: its file, each site's check, a round, an exported model."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

pytest.importorskip("flwr", reason="the optional extra `flower` is not installed")

from commands import ask
from fedl2g.deploy.check import check_site
from fedl2g.deploy.coordinator import Coordinator, read_coordinator
from fedl2g.deploy.export import export_site
from fedl2g.deploy.own_site import make_node
from fedl2g.deploy.predict import open_model, predict, write_csv
from fedl2g.deploy.programs import ONNX, PROGRAM, load_onnx, write_programs
from fedl2g.deploy.site_file import SiteFile, read_site
from fedl2g.engines.flower.messages import Request, pack_request, unpack_request
from fedl2g.engines.flower.node import Node
from fedl2g.errors import DataError, RunError, SettingError
from fedl2g.methods.registry import get_method
from fedl2g.models import build_model
from fedl2g.models.example import example_batch
from fedl2g.schema import Column, Schema

COORDINATOR = """
rounds = 20
method = "fedproto"
client_lr = 0.1

[federation]
classes = ["well", "ill"]
sites = ["north", "south"]

[federation.inputs]
kind = "table"

[federation.inputs.columns]
age = "number"
sex = ["f", "m"]
"""
SITE = """
client-id = {number}
name = "{name}"
model = "{model}"
data = "patients.csv"
label = "state"

[limits]
methods = ["fedproto"]
"""
MODELS = {"north": "table_mlp", "south": "table_resnet"}


def patients(count: int, offset: float) -> pd.DataFrame:
    random = np.random.default_rng(int(offset))
    ill = np.arange(count) % 2
    return pd.DataFrame(
        {
            "number": [f"p{n}" for n in range(count)],  # an identifier: not in the federation's form, so never used
            "sex": np.array(["m", "f"])[ill],
            "age": random.normal(offset + 30 * ill, 1.0),
            "state": np.array(["well", "ill"])[ill],
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "experiment.toml").write_text(COORDINATOR)
    for number, (name, model) in enumerate(MODELS.items()):
        (tmp_path / name).mkdir()
        (tmp_path / name / "site.toml").write_text(SITE.format(number=number, name=name, model=model))
        patients(40, 30.0 + 100 * number).to_csv(tmp_path / name / "patients.csv", index=False)
    return tmp_path


def lines(folder: Path) -> dict[str, tuple[bool, str]]:
    found = check_site(folder / "north" / "site.toml", folder / "experiment.toml", offline=True)
    return {verdict.what: (verdict.good, verdict.detail) for verdict in found}


def test_the_check_compares_a_table_column_by_column(folder: Path) -> None:
    found = lines(folder)
    assert found["column sex"] == (True, "2 of 2 categories")
    assert found["column age"][0]
    assert found["column age"][1].startswith("numbers from ")
    assert found["columns"] == (True, "not used here: number")
    assert found["data"] == (True, "40 rows of 2 columns (1 of them categories) in patients.csv")
    assert found["labels"] == (True, "2 of the federation's 2 classes: well, ill")
    assert found["batch"][0]
    patients(40, 30).assign(sex="unknown").drop(columns="age").to_csv(folder / "north" / "patients.csv", index=False)
    found = lines(folder)
    assert found["column age"] == (False, "the column 'age' is missing; expected age, sex")
    assert found["column sex"] == (False, "the column 'sex' has 'unknown'; expected one of f, m")
    assert not found["data"][0]


def test_sites_learn_together_and_keep_their_statistics(folder: Path) -> None:
    coordinator = read_coordinator(folder / "experiment.toml")
    columns = (Column("age"), Column("sex", ("f", "m")))
    assert coordinator.federation.inputs == Schema("table", (2,), columns)
    files = [read_site(folder / name / "site.toml", trust=False) for name in MODELS]
    experiment = coordinator.experiment
    server = get_method(experiment.method.name).server(experiment.method, coordinator.setup.task)
    nodes: list[Node] = []
    for number in (1, 2):
        for file in files:
            request = asked(coordinator, server, number)
            node = make_node(file, request)
            reply = node.train(request)
            assert set(reply.payload) == {"ids", "rows"}  # and no statistics
            nodes.append(node)
    means = [mean_of(node, number, request) for number, node in enumerate(nodes[-2:])]
    assert means == [pytest.approx(45, abs=6), pytest.approx(145, abs=6)]  # each its own

    about = exported(files[0], folder)
    patients(6, 30).to_csv(folder / "again.csv", index=False)
    out = io.StringIO()
    write_csv(about, predict(about, folder / "again.csv"), out)
    rows = list(csv.DictReader(io.StringIO(out.getvalue())))
    assert [row["class"] for row in rows] == ["well", "ill"] * 3


def asked(coordinator: Coordinator, server: Any, round: int) -> Request:
    """A request as it arrives at a site, after a passage through Flower's records."""
    table = coordinator.federation
    sent = Request("run1", coordinator.experiment, table.classes, table.inputs, round, server.broadcast(round))
    arrived = unpack_request(pack_request(sent), 2**20)
    assert (arrived.inputs, arrived.classes) == (table.inputs, table.classes)
    return arrived


def mean_of(node: Node, client: int, request: Request) -> float:
    host = node._host(node._store(request).before(request.round + 1))
    mean: torch.Tensor = host.half(client).client.preparation.state_dict()["mean"]
    return float(mean[0])


def exported(file: SiteFile, folder: Path) -> Any:
    export_site(file.folder / "site.toml", folder / "model", which="last")
    return open_model(folder / "model")


def test_signals_of_any_length_have_an_onnx_form(tmp_path: Path) -> None:
    """50 samples are no multiple of the 32 and 8 windows over which sensor_cnn takes its maxima."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    inputs = Schema("signal", (2, 50))
    model = build_model("sensor_cnn", classes=3, inputs=inputs).eval()
    network = nn.Sequential(model.extractor, model.head)
    assert [path.name for path in write_programs(network, example_batch(inputs, 3), "inputs", tmp_path)] == [
        PROGRAM,
        ONNX,
    ]
    samples = example_batch(inputs, 5) * 3
    found = load_onnx((tmp_path / ONNX).read_bytes())(samples)
    torch.testing.assert_close(found, network(samples).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('kind = "table"', 'kind = "tabel"', "kind: 'tabel' is not known"),
        ('age = "number"', 'age = "numbers"', "columns: 'age' is 'numbers'; expected 'number' or a list"),
        ('sex = ["f", "m"]', 'sex = ["f", "f"]', "columns: 'sex' has too many categories, or one twice"),
        ("[federation.inputs]", "image_shape = [1, 8, 8]\n[federation.inputs]", "either image_shape, or the table"),
        ("rounds = 20", 'rounds = 20\nlabel = "state"', "label: not allowed in a deployment"),
    ],
)
def test_what_is_wrong_with_the_form_is_said(old: str, new: str, words: str, folder: Path) -> None:
    file = folder / "experiment.toml"
    file.write_text(COORDINATOR.replace(old, new))
    with pytest.raises(SettingError) as error:
        read_coordinator(file)
    assert words in str(error.value)


def texts(folder: Path, number: int) -> None:
    words = ["the goal of the match", "shares and banks fell again"] * 20
    pd.DataFrame({"title": words, "state": ["well", "ill"] * 20}).to_csv(folder / "data.csv", index=False)
    pd.DataFrame({"title": words[:4]}).to_csv(folder / "again.csv", index=False)


def signals(folder: Path, number: int) -> None:
    random, labels = np.random.default_rng(number), np.array(["well", "ill"] * 20)
    inputs = random.normal(10.0 + 100 * number, 1.0, (40, 2, 16)) + np.where(labels == "ill", 4.0, 0.0)[:, None, None]
    np.savez(folder / "data.npz", inputs=inputs, labels=labels)
    np.save(folder / "again.npy", inputs[:4])


@pytest.mark.parametrize(
    ("make", "form", "about", "again"),
    [
        (texts, 'kind = "text"\nshape = [8]', 'model = "text_transformer"\ndata = "data.csv"\nlabel = "state"\n'
         'text = "title"', "again.csv"),
        (signals, 'kind = "signal"\nshape = [2, 16]', 'model = "sensor_gru"\ndata = "data.npz"', "again.npy"),
    ],
)  # fmt: skip
def test_sites_with_texts_or_signals_learn_together(
    make: Callable[[Path, int], None], form: str, about: str, again: str, tmp_path: Path
) -> None:
    start, _, _ = COORDINATOR.partition("[federation.inputs]")
    (tmp_path / "experiment.toml").write_text(f"{start}[federation.inputs]\n{form}\n")
    files = []
    for number, name in enumerate(MODELS):
        (tmp_path / name).mkdir()
        limits = '[limits]\nmethods = ["fedproto"]\n'
        (tmp_path / name / "site.toml").write_text(f'client-id = {number}\nname = "{name}"\n{about}\n{limits}')
        make(tmp_path / name, number)
        files.append(read_site(tmp_path / name / "site.toml", trust=False))
        found = check_site(files[-1].folder / "site.toml", tmp_path / "experiment.toml", offline=True)
        good = {verdict.what: verdict.good for verdict in found}
        assert all(good[what] for what in ("data", "labels", "model", "batch")), good
    coordinator = read_coordinator(tmp_path / "experiment.toml")
    experiment = coordinator.experiment
    server = get_method(experiment.method.name).server(experiment.method, coordinator.setup.task)
    for number in range(1, 5):
        request = asked(coordinator, server, number)
        replies = [make_node(file, request).train(request) for file in files]
        assert all(set(reply.payload) == {"ids", "rows"} for reply in replies)
    model = exported(files[1], tmp_path)
    out = io.StringIO()
    write_csv(model, predict(model, files[1].folder / again), out)
    assert [row["class"] for row in csv.DictReader(io.StringIO(out.getvalue()))] == ["well", "ill"] * 2
    if again.endswith(".csv"):
        (tmp_path / "empty.txt").write_text("")
        with pytest.raises(RunError, match=r"empty.txt: holds no texts; expected at least one"):
            next(predict(model, tmp_path / "empty.txt"))


def test_texts_and_signals_of_another_form_are_refused(tmp_path: Path) -> None:
    from fedl2g.deploy.own_site import load_data

    np.savez(tmp_path / "motion.npz", inputs=np.zeros((4, 3, 9)), labels=[0, 1, 0, 1])
    file = SiteFile(folder=tmp_path, **{"client-id": 0, "name": "a", "model": "sensor_cnn", "data": "motion.npz"})
    assert load_data(file, ("0", "1"), Schema("signal", (3, 9))).shape == (3, 9)
    with pytest.raises(DataError, match="holds signals of 3 x 9; expected signals of 4 x 9"):
        load_data(file, ("0", "1"), Schema("signal", (4, 9)))
    with pytest.raises(DataError, match="holds signals; expected texts"):
        load_data(file, ("0", "1"), Schema("text", (9,), vocabulary=20))


@pytest.mark.parametrize(
    ("options", "written"),
    [
        (("--kind", "table", "--column", "age=number", "--column", "sex=f,m"), 'sex = [\n    "f",\n    "m",\n]\n'),
        (("--kind", "signal", "--shape", "9,128"), 'inputs]\nkind = "signal"\nshape = [\n    9,\n    128,\n]\n'),
        (("--kind", "text"), 'kind = "text"'),
    ],
)
def test_a_new_federation_of_any_kind_can_be_read(options: tuple[str, ...], written: str, tmp_path: Path) -> None:
    made = ("deploy", "new", "fed", "--site", "north", "--class", "well", "--class", "ill", *options)
    assert ask(made, tmp_path).code == 0
    coordinator = read_coordinator(tmp_path / "fed/coordinator/experiment.toml")
    kind = options[1]
    assert coordinator.federation.inputs.kind == kind
    assert written in (tmp_path / "fed/coordinator/experiment.toml").read_text()
    site = read_site(tmp_path / "fed/sites/north/site.toml", trust=False)
    assert OF_KIND[kind] == (site.model, site.data, site.label, site.text)
    said = ask(("deploy", "practice", "fed"), tmp_path)
    assert (said.code, "practice data: they are images" in said.err, said.err.count("\n")) == (2, True, 1), said
    assert not (tmp_path / "fed/sites/north/data").exists()


OF_KIND = {
    "table": ("table_mlp", "data/data.csv", "label", None),
    "signal": ("sensor_dilated", "data/data.npz", None, None),
    "text": ("text_cnn", "data/data.csv", "label", "text"),
}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--kind", "table"), "--column: does not fit the kind table; a table needs its columns"),
        (("--column", "age=number"), "other kinds have no columns"),
        (("--kind", "table", "--column", "age"), "not of the form NAME=number or NAME=CATEGORY"),
        (("--kind", "table", "--column", "sex=f,f"), "'sex' has too many categories, or one twice"),
        (("--kind", "signal"), "expected channels,time of the signals"),
        (("--shape", "3,a,4"), "'3,a,4' is not a shape"),
        (("--shape", "3,4"), "is not the shape of one sample of kind image"),
    ],
)
def test_a_form_that_cannot_be_is_refused(options: tuple[str, ...], words: str, tmp_path: Path) -> None:
    made = ("deploy", "new", "fed", "--site", "north", "--class", "well", "--class", "ill", *options)
    said = ask(made, tmp_path)
    assert (said.code, words in said.err, said.err.count("\n")) == (2, True, 1), said
    assert not (tmp_path / "fed").exists()
