"""The named datasets that are not images, read from small files in their true formats."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedl2g.datasets import load_dataset
from fedl2g.datasets.named import CATALOG
from fedl2g.datasets.named_others import HAR_SIGNALS, read_ag_news, read_har, read_pamap2
from fedl2g.datasets.text import token_id
from fedl2g.errors import DataError
from fedl2g.experiment import Experiment

ACTIVITIES = "1 WALKING\n2 WALKING_UPSTAIRS\n3 WALKING_DOWNSTAIRS\n4 SITTING\n5 STANDING\n6 LAYING\n"


def lines(rows: np.ndarray) -> str:
    return "".join("  " + " ".join(f"{value:.7e}" for value in row) + "\n" for row in rows)


def har(path: Path, *, wrapped: bool, width: int = 128) -> dict[str, np.ndarray]:
    random, made = np.random.default_rng(0), {}
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("UCI HAR Dataset/activity_labels.txt", ACTIVITIES)
        for side, labels, subjects in (("train", "5\n1\n6\n", "1\n1\n30\n"), ("test", "2\n4\n", "2\n2\n")):
            for name in HAR_SIGNALS:
                made[f"{name}_{side}"] = random.normal(size=(labels.count("\n"), width))
                text = lines(made[f"{name}_{side}"])
                archive.writestr(f"UCI HAR Dataset/{side}/Inertial Signals/{name}_{side}.txt", text)
            archive.writestr(f"UCI HAR Dataset/{side}/y_{side}.txt", labels)
            archive.writestr(f"UCI HAR Dataset/{side}/subject_{side}.txt", subjects)
    if not wrapped:
        path.write_bytes(inner.getvalue())
        return made
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("UCI HAR Dataset.zip", inner.getvalue())
    return made


@pytest.mark.parametrize("wrapped", [True, False])
def test_har(tmp_path: Path, wrapped: bool) -> None:
    made = har(tmp_path / "har.zip", wrapped=wrapped)
    content = read_har({"har.zip": tmp_path / "har.zip"}, 0)
    (signals,) = content.inputs
    assert signals.shape == (5, 9, 128)
    np.testing.assert_allclose(signals[:3, 4], made["body_gyro_y_train"], rtol=1e-6)
    np.testing.assert_allclose(signals[3:, 8], made["total_acc_z_test"], rtol=1e-6)
    assert content.labels.tolist() == [4, 0, 5, 1, 3]
    assert content.class_names[:2] == ("walking", "walking upstairs")
    assert content.groups is not None
    assert (content.groups.tolist(), content.group_names) == ([0, 0, 2, 1, 1], ("1", "2", "30"))
    assert content.group_column == "subject"


def test_a_damaged_har_is_said(tmp_path: Path) -> None:
    har(tmp_path / "har.zip", wrapped=False, width=100)
    with pytest.raises(DataError, match="do not fit together"):
        read_har({"har.zip": tmp_path / "har.zip"}, 0)
    (tmp_path / "har.zip").write_bytes(b"PK\x03\x04 half")
    with pytest.raises(DataError, match=r"har.zip: damaged .*delete it and load the dataset again"):
        read_har({"har.zip": tmp_path / "har.zip"}, 0)


def test_pamap2(tmp_path: Path) -> None:
    """Two windows of lying (1,000 samples: starts 0 and 256), none of what is transient, too short, or unlisted."""
    random = np.random.default_rng(1)
    with zipfile.ZipFile(tmp_path / "pamap2.zip", "w") as archive:
        for subject in range(101, 110):
            activities = (
                [1] * 1000 + [0] * 600 + [24] * 511 if subject == 101 else [0] * 3 if subject != 109 else [7] * 512
            )
            rows = random.normal(size=(len(activities), 54))
            rows[:, 1] = activities
            if subject == 101:
                rows[100, 4], first = np.nan, rows.copy()
            text = "\n".join(" ".join("NaN" if np.isnan(v) else f"{v:.6f}" for v in row) for row in rows)
            archive.writestr(f"PAMAP2_Dataset/Protocol/subject{subject}.dat", text)
    content = read_pamap2({"pamap2.zip": tmp_path / "pamap2.zip"}, 0)
    (signals,) = content.inputs
    assert signals.shape == (3, 27, 128)
    assert content.groups is not None
    assert (content.groups.tolist(), content.group_names) == ([0, 0, 1], ("101", "109"))
    assert [content.class_names[label] for label in content.labels] == ["lying", "lying", "Nordic walking"]
    hand_x = first[:, 4].copy()  # of the first unit: column 5 counted from 1, after its temperature
    hand_x[100] = (hand_x[99] + hand_x[101]) / 2
    np.testing.assert_allclose(signals[0, 0], hand_x[0:512:4], atol=1e-5)
    np.testing.assert_allclose(signals[1, 9], first[256:768:4, 21], atol=1e-5)  # the chest's first acceleration


def test_ag_news(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("ag_news_train.csv", "ag_news_test.csv")}
    files["ag_news_train.csv"].write_text('"3","Oil ""up""","Prices, again"\n"1","War","ends"\n', encoding="utf-8")
    files["ag_news_test.csv"].write_text('"4","Chips","fast"\n', encoding="utf-8")
    content = read_ag_news(files, 0)
    (ids,) = content.inputs
    assert content.labels.tolist() == [2, 0, 3]
    assert content.class_names == ("World", "Sports", "Business", "Sci/Tech")
    assert ids[0].tolist() == [token_id(w) for w in ("oil", '"', "up", '"', "prices", ",", "again")]
    assert ids[2].tolist() == [token_id("chips"), token_id("fast"), 0, 0, 0, 0, 0]
    files["ag_news_test.csv"].write_text('"5","Chips","fast"\n', encoding="utf-8")
    with pytest.raises(DataError, match="labels do not fit its 4 classes"):
        read_ag_news(files, 0)


@pytest.mark.parametrize(
    ("name", "samples", "columns", "first"), [("breast-cancer", 569, 30, "mean radius"), ("wine", 178, 13, "alcohol")]
)
def test_tables_of_scikit_learn(tmp_path: Path, name: str, samples: int, columns: int, first: str) -> None:
    dataset = load_dataset(name, data_dir=tmp_path)
    assert (len(dataset), dataset.shape, dataset.schema.columns[0].name) == (samples, (columns,), first)
    assert (CATALOG[name].samples, CATALOG[name].classes) == (samples, dataset.classes)
    with pytest.raises(DataError, match=r"image_size: .* holds rows of a table"):
        load_dataset(name, image_size=32, data_dir=tmp_path)


def test_the_models_follow_the_kind_unless_they_are_named() -> None:
    assert Experiment(dataset="har").models == "sensor"
    assert Experiment(dataset="ag_news").models == "text"
    assert Experiment(dataset="x.csv", label="y").models == "table"
    assert Experiment(dataset="x.csv", label="y", text="t").models == "text"
    assert Experiment(dataset="hf:x", text="t").models == "text"
    assert Experiment(dataset="wine", models="table_mlp").models == "table_mlp"
    assert Experiment().models == "small"
