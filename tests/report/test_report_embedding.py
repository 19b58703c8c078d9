"""t-SNE of the paper: global prototypes that the analysis computes for FedL2G, guiding vectors, features, a legend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fedl2g
from fedl2g.engines.host import Host
from fedl2g.report import embedding
from fedl2g.report.collect import group_runs, read_runs
from fedl2g.report.figures import figure, write_figure
from fedl2g.runs.checkpoint import newest
from fedl2g.setup import prepare

COMMON: dict[str, Any] = {
    "dataset": "digits", "samples": 120, "clients": 3, "partition": "dirichlet:0.5", "rounds": 2, "models": "small_cnn"
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("embedding")
    for name in ("fedl2g-f", "fedl2g-l"):
        options = {"name": name, "warmup_rounds": 1, "quiz_size": 4}
        fedl2g.run(fedl2g.Experiment(method=options, **COMMON), place / name)
    fedl2g.run(fedl2g.Experiment(method="fedproto", **COMMON), place / "fedproto")
    return place


def vectors(folder: Path, name: str) -> embedding._Vectors:
    (run,) = read_runs([folder / name])
    found = embedding._vectors(run)
    assert found is not None
    return found


@pytest.mark.parametrize(("name", "column"), [("fedl2g-f", 0), ("fedl2g-l", 1)])
def test_prototypes_of_fedl2g_are_means_over_clients_of_class_means_of_training_samples(
    folder: Path, name: str, column: int
) -> None:
    (run,) = read_runs([folder / name])
    setup = prepare(run.directory.experiment())
    checkpoint = newest(run.directory.checkpoints)
    assert checkpoint is not None
    host = Host(setup, torch.device("cpu"))
    host.restore(checkpoint.path)
    expected: dict[int, list[torch.Tensor]] = {}
    with torch.no_grad():
        for client in range(3):
            half = host.half(client)
            half.model.eval()
            for label in range(10):
                own = [i for i in setup.partition.train[client] if setup.dataset.labels[i] == label]
                if own:
                    images = torch.as_tensor(setup.dataset.inputs[own]).float() / 127.5 - 1
                    expected.setdefault(label, []).append(half.model(images)[column].double().mean(0))
    host.close()
    assert len({len(means) for means in expected.values()}) > 1, (
        "classes should be held by different numbers of clients"
    )

    found = vectors(folder, name).by_class["prototype"]
    assert found["ids"].tolist() == sorted(expected)
    reference = torch.stack([torch.stack(expected[label]).mean(0) for label in sorted(expected)])
    torch.testing.assert_close(found["rows"].double(), reference, rtol=1e-4, atol=1e-5)


def test_guiding_vectors_and_fedprotos_prototypes_are_those_of_the_server(folder: Path) -> None:
    for name, kind, entry in (("fedl2g-f", "guide", "guide"), ("fedproto", "prototype", "vectors")):
        (run,) = read_runs([folder / name])
        checkpoint = newest(run.directory.checkpoints)
        assert checkpoint is not None
        by_class = vectors(folder, name).by_class
        assert torch.equal(by_class[kind]["rows"], checkpoint.server()[entry][by_class[kind]["ids"].long()])
    assert list(vectors(folder, "fedproto").by_class) == ["prototype"]


def test_prototypes_of_fedl2g_were_never_uploaded(folder: Path) -> None:
    """What the clients sent is at most a row for each study sample, as without any analysis."""
    (run,) = read_runs([folder / "fedl2g-f"])
    most = 3 * 10 * (512 * 4 + 8)
    assert 0 < max(record.up_bytes for record in run.history) <= most


def test_kinds_and_forms_are_named_for_the_drawing(folder: Path, tmp_path: Path) -> None:
    runs = read_runs([folder])
    found = embedding.embed(next(run for run in runs if run.method == "fedl2g-l"))
    assert found is not None
    assert found["kinds"] == [
        ["feature", "test samples (their features or logits)", "dot"],
        ["prototype", "global prototypes (FedL2G never sends any)", "ring"],
        ["guide", "guiding vectors", "diamond"],
    ]
    assert {point[2] for point in found["points"]} == {"feature", "prototype", "guide"}
    sent = embedding.embed(next(run for run in runs if run.method == "fedproto"))
    assert sent is not None
    assert [kind for kind, _, _ in sent["kinds"]] == ["feature", "prototype"]

    groups = group_runs(runs)
    panels = figure("tsne", groups).hconcat
    titles = [panel.title for panel in panels]  # guiding vectors first
    assert [title.split(" (")[0] for title in titles] == ["fedl2g-f", "fedl2g-l", "fedproto"]
    assert titles[1].endswith("(logits, round 2, seed 0)")
    (points,) = panels[1].data.values
    assert list(zip(points["x"], points["y"], strict=True)) == [(point[0], point[1]) for point in found["points"]]
    assert points["label"] == [found["class_names"][point[3]] for point in found["points"]]

    text = write_figure("tsne", groups, tmp_path / "tsne.svg").read_text(encoding="utf-8")
    assert "guiding vectors" in text
    assert "global prototypes (FedL2G never sends any)" in text
    assert ">class<" in text  # the legend of the classes


def test_side_by_side_a_kind_has_one_form(folder: Path) -> None:
    """Panels share one legend: a name that only some of them had would shift the forms of the others."""
    panels = figure("tsne", group_runs(read_runs([folder]))).to_dict()["hconcat"]
    scales = [panel["layer"][0]["encoding"]["shape"]["scale"] for panel in panels]
    assert [len(scale["domain"]) for scale in scales] == [3, 3, 2]
    for scale in scales:
        assert scale["domain"] == scales[0]["domain"][: len(scale["domain"])]
        assert scale["range"] == scales[0]["range"][: len(scale["range"])]


def test_figures_write_no_weights_anywhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a file or folder is written")

    (run,) = read_runs([folder / "fedl2g-l"])
    before = sorted(folder.rglob("*"))
    with monkeypatch.context() as patch:
        for target in ("tempfile.mkdtemp", "safetensors.torch.save_file", "os.link", "shutil.copyfile"):
            patch.setattr(target, refuse)
        assert embedding.embed(run) is not None
    assert sorted(folder.rglob("*")) == before
