"""`hf:NAME`: local folders in the formats of Hugging Face `datasets`, without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedl2g.datasets import Dataset, load_dataset
from fedl2g.datasets.dataset import SIDES
from fedl2g.datasets.tables import Roles
from fedl2g.errors import DataError
from fedl2g.references import is_reference
from fedl2g.schema import Column, Schema

hub: Any = pytest.importorskip("datasets", reason="the optional extra `hub` is not installed")
NAMES = ["World", "Sports", "Business"]


def texts(count: int, start: int = 0) -> Any:
    features = hub.Features(
        {"text": hub.Value("string"), "label": hub.ClassLabel(names=NAMES), "when": hub.Value("int32")}
    )
    rows = [{"text": f"word{n} again", "label": n % 3, "when": n} for n in range(start, start + count)]
    return hub.Dataset.from_list(rows, features=features)


def loaded(folder: Path, name: str = "", **roles: Any) -> Dataset:
    return load_dataset(f"hf:{folder / 'saved'}{name}", data_dir=folder / "cache", roles=Roles(**roles))


def test_splits_are_a_given_split_and_classes_keep_their_order(tmp_path: Path) -> None:
    hub.DatasetDict({"train": texts(6), "test": texts(3, 6)}).save_to_disk(str(tmp_path / "saved"))
    found = loaded(tmp_path, text=("text",))
    assert (found.schema.kind, found.class_names, len(found)) == ("text", tuple(NAMES), 9)
    assert found.labels.tolist() == [0, 1, 2] * 3
    assert found.split is not None
    assert [SIDES[side] for side in found.split] == ["train"] * 6 + ["test"] * 3
    one = loaded(tmp_path, ":test", text=("text",))
    assert (len(one), one.split, one.name) == (3, None, "saved")
    with pytest.raises(DataError, match="it has no split 'tests'; did you mean 'test'"):
        loaded(tmp_path, ":tests", text=("text",))


def test_other_columns_are_a_table(tmp_path: Path) -> None:
    texts(6).save_to_disk(str(tmp_path / "saved"))
    found = loaded(tmp_path, ignore=("text",))
    assert found.schema == Schema("table", (1,), (Column("when"),))
    assert found.inputs[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    grouped = loaded(tmp_path, text=("text",), group="when")
    assert (grouped.group_column, grouped.group_names[:2]) == ("when", ("0", "1"))


def test_images_keep_their_size_channels_and_names(tmp_path: Path) -> None:
    pixels = np.arange(3 * 9, dtype=np.uint8).reshape(3, 3, 3)
    features = hub.Features({"image": hub.Image(), "digit": hub.ClassLabel(names=["one", "two"])})
    rows = {"image": [Image.fromarray(one) for one in pixels], "digit": [1, 0, 1]}
    hub.Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path / "saved"))
    found = loaded(tmp_path)
    assert (found.schema, found.class_names) == (Schema("image", (1, 3, 3)), ("one", "two"))
    np.testing.assert_array_equal(found.inputs[:, 0], pixels)
    assert found.labels.tolist() == [1, 0, 1]


def test_a_folder_of_parquet_files_is_read_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "saved").mkdir()
    texts(6).to_parquet(str(tmp_path / "saved" / "train-00000-of-00001.parquet"))
    before, said = hub.utils.are_progress_bars_disabled(), []
    capfd.readouterr()
    found = load_dataset(
        f"hf:{tmp_path / 'saved'}", data_dir=tmp_path / "cache", roles=Roles(text=("text",)),
        progress=lambda *what: said.append(what),
    )  # fmt: skip
    assert found.class_names == tuple(NAMES)
    assert said[0] == (f"Loading hf:{tmp_path / 'saved'}", 0, None)
    assert (hub.utils.are_progress_bars_disabled(), capfd.readouterr().err) == (
        before,
        "",
    )  # no bars of the package's own


def test_the_column_called_label_is_the_label(tmp_path: Path) -> None:
    features = hub.Features(
        {"age": hub.Value("float32"), "sex": hub.ClassLabel(names=["f", "m"]), "label": hub.Value("string")}
    )
    rows = [{"age": 30.0 + n, "sex": n % 2, "label": ["well", "ill"][n // 2]} for n in range(4)]
    hub.Dataset.from_list(rows, features=features).save_to_disk(str(tmp_path / "saved"))
    found = loaded(tmp_path)
    assert (found.class_names, found.schema.columns) == (("ill", "well"), (Column("age"), Column("sex", ("f", "m"))))


def test_what_cannot_be_used_is_said(tmp_path: Path) -> None:
    hub.DatasetDict({"train": texts(3), "unsupervised": texts(3)}).save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(DataError, match="split 'unsupervised' is neither train, test nor validation; name the one"):
        loaded(tmp_path, text=("text",))
    with pytest.raises(DataError, match=r"label: .* has no column 'topic'"):
        loaded(tmp_path, ":train", text=("text",), label="topic")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"cannot be loaded .*check the name and the connection"):
        load_dataset(f"hf:{tmp_path / 'empty'}", data_dir=tmp_path)


def test_the_name_is_no_code() -> None:
    assert not is_reference("hf:mnist")
    assert not is_reference("timm:resnet18")
    assert is_reference("hfx:mnist")
