"""`fedl2g predict`: an exported model on arrays, images and folders, as CSV; what cannot be read is one sentence."""

from __future__ import annotations

import csv
import io
import json
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image
from tiny import TINY

from fedl2g.datasets import load_dataset
from fedl2g.deploy.programs import load_onnx

HEADER = ["input", "class", *(f"score {digit}" for digit in range(10))]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept") / "model"


@pytest.fixture
def model(fedl2g: Any, tmp_path: Path, kept: Path) -> Path:
    """The exported model of a client of FedProto: its prediction compares distances, which ONNX cannot."""
    if not kept.exists():
        assert fedl2g("run", *TINY, "--method", "fedproto", "--out", "run").code == 0
        exported = fedl2g("export", "run", "--client", "0", "--out", "model")
        assert exported.code == 0
        assert exported.err == ""  # no warning of a library
        files = ("weights.safetensors", "model.torchscript", "model.pt2", "model.onnx", "model.json")
        assert exported.out.splitlines()[-1] == "wrote " + ", ".join(f"model/{name}" for name in files)
        assert len({(tmp_path / "model" / name).stat().st_mode for name in files}) == 1  # all of it can be handed on
        shutil.move(tmp_path / "model", kept)
    return Path(shutil.copytree(kept, tmp_path / "model"))


def rows(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


def test_the_classes_of_arrays_images_and_folders(fedl2g: Any, model: Path, tmp_path: Path) -> None:
    images = np.asarray(load_dataset("digits", samples=160).inputs[:12])
    pictures = images.transpose(0, 2, 3, 1)
    np.save(tmp_path / "images.npy", pictures)
    np.savez(tmp_path / "images.npz", images=pictures)
    (tmp_path / "folder").mkdir()
    for number, picture in enumerate(pictures):
        Image.fromarray(picture).save(tmp_path / "folder" / f"{number:02}.png")

    session = onnxruntime.InferenceSession(model / "model.onnx", providers=["CPUExecutionProvider"])
    (scores,) = session.run(["scores"], {"images": images.astype(np.float32)})
    outcome = fedl2g("predict", "model", "images.npy")
    assert (outcome.code, outcome.err) == (0, "")
    header, *found = rows(outcome.out)
    assert header == HEADER
    assert [row[0] for row in found] == [str(number) for number in range(12)]
    assert [int(row[1]) for row in found] == scores.argmax(1).tolist()
    assert np.array([row[2:] for row in found], dtype=float) == pytest.approx(scores, abs=1e-3)

    assert fedl2g("predict", "model", "images.npz").out == outcome.out
    said = fedl2g("predict", "model", "folder", "-o", "new/classes.csv")
    assert said.out == "wrote the classes of 12 images to new/classes.csv\n"
    of_folder = rows((tmp_path / "new" / "classes.csv").read_text())
    assert [row[0] for row in of_folder[1:]] == [f"{number:02}.png" for number in range(12)]
    assert [row[1:] for row in of_folder] == [row[1:] for row in (header, *found)]
    assert rows(fedl2g("predict", "model", "folder/03.png").out)[1][1:] == found[3][1:]


def test_what_cannot_be_predicted_is_one_sentence(fedl2g: Any, model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "letter.png").write_text("no image")
    np.save(tmp_path / "grey.npy", np.zeros((2, 32, 32), np.uint8))
    for arguments, sentence in (
        (("model", "nowhere"), "nowhere: no such file or folder"),
        (("model", "empty"), "empty: holds no images"),
        (("model", "letter.png"), "letter.png: is not an image"),
        (("model", "grey.npy"), "grey.npy: the channels of its images are 1; the model expects 3"),
        (("nowhere", "letter.png"), "expected a folder written by `fedl2g export`"),
        (("model", "letter.png", "-o", "letter.png/x.csv"), "--out: letter.png/x.csv cannot be written"),
    ):
        refused = fedl2g("predict", *arguments)
        assert (refused.code, refused.out) == (2, "")
        assert sentence in refused.sentence
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("other/data.txt", "nothing of ours")
    for program, trust in (("model.onnx", ()), ("model.pt2", ("--trust",))):
        whole = (model / program).read_bytes()
        for damaged in (b"damaged", b"", whole[: len(whole) // 2], (tmp_path / "other.zip").read_bytes()):
            (model / program).write_bytes(damaged)
            said = fedl2g("predict", "model", "grey.npy", *trust)
            assert f"{program}: cannot be read" in said.sentence
    (model / "model.onnx").unlink()
    assert "model.onnx: is missing; pip install 'fedl2g[onnx]'" in fedl2g("predict", "model", "grey.npy").sentence


class Evil:
    """What a pickle can do to whoever opens it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("import pathlib; pathlib.Path('touched').touch()",))


def test_a_program_that_holds_code_runs_with_trust_only(fedl2g: Any, model: Path, tmp_path: Path) -> None:
    images = np.asarray(load_dataset("digits", samples=160).inputs[:2]).transpose(0, 2, 3, 1)
    np.save(tmp_path / "images.npy", images)
    with_onnx = rows(fedl2g("predict", "model", "images.npy").out)
    with_torch = rows(fedl2g("predict", "model", "images.npy", "--trust").out)
    assert [row[:2] for row in with_torch] == [row[:2] for row in with_onnx]
    with zipfile.ZipFile(model / "model.pt2") as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    inputs = [name for name in entries if name.endswith("sample_inputs/model.pt")]
    assert inputs, "where torch keeps a pickle has changed: look at what it reads now"
    with zipfile.ZipFile(model / "model.pt2", "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, pickle.dumps(Evil()) if name in inputs else content)
    assert fedl2g("predict", "model", "images.npy").code == 0
    assert not (tmp_path / "touched").exists()
    fedl2g("predict", "model", "images.npy", "--trust")
    assert (tmp_path / "touched").exists(), "the attack has become harmless: is --trust still needed?"


def program(weights: onnx.TensorProto, scores: str) -> bytes:
    """An ONNX program that multiplies images by weights."""
    images = onnx.helper.make_tensor_value_info("images", onnx.TensorProto.FLOAT, ["batch", 3, 32, 32])
    found = onnx.helper.make_tensor_value_info(scores, onnx.TensorProto.FLOAT, ["batch", 10])
    nodes = [
        onnx.helper.make_node("Flatten", ["images"], ["flat"]),
        onnx.helper.make_node("MatMul", ["flat", weights.name], [scores]),
    ]
    unused = onnx.numpy_helper.from_array(np.ones(2, np.float32), "\x1b]0;owned\x07")
    graph = onnx.helper.make_graph(nodes, "graph", [images], [found], [weights, unused])
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    content: bytes = made.SerializeToString()
    return content


def test_a_program_of_somebody_else_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    weights = onnx.numpy_helper.from_array(np.ones((3 * 32 * 32, 10), np.float32), "weights")
    scores = load_onnx(program(weights, "scores"))(torch.ones(2, 3, 32, 32))
    assert scores.tolist() == [[3072.0] * 10] * 2
    assert capfd.readouterr() == ("", "")


def test_a_program_of_somebody_else_reads_no_other_file(fedl2g: Any, model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", np.zeros((2, 32, 32, 3), np.uint8))
    for folder in (tmp_path, model):
        (folder / "secret.bin").write_bytes(np.ones((3 * 32 * 32, 10), np.float32).tobytes())
    outside = onnx.TensorProto(name="weights", data_type=onnx.TensorProto.FLOAT, dims=[3 * 32 * 32, 10])
    outside.data_location = onnx.TensorProto.EXTERNAL
    outside.external_data.add(key="location", value="secret.bin")
    (model / "model.onnx").write_bytes(program(outside, "scores"))
    said = fedl2g("predict", "model", "images.npy")
    assert (said.code, said.out) == (2, "")
    assert "model.onnx: cannot be read" in said.sentence


def test_a_model_of_somebody_else_is_read_as_data(fedl2g: Any, model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", np.zeros((2, 32, 32, 3), np.uint8))
    about = json.loads((model / "model.json").read_text())
    for changed, sentence in (
        ({"classes": ["\x1b[2J"] * 10}, "holds control characters"),
        ({"classes": ["a"]}, "has 1 classes, and the program gives [2, 10] scores"),
        ({"schema": {"kind": "image", "shape": [3, 10**9, 10**9]}}, "model.json: cannot be read"),
        ({"schema": 3}, "model.json: cannot be read"),
        ({"type": "float7"}, "fedl2g"),
    ):
        (model / "model.json").write_text(json.dumps({**about, **changed}))
        said = fedl2g("predict", "model", "images.npy")
        assert (said.code, said.out) == (2, ""), changed
        assert sentence in said.sentence
    (model / "model.json").unlink()
    (model / "model.json").symlink_to("/dev/zero")
    assert "expected a regular file" in fedl2g("predict", "model", "images.npy").sentence
