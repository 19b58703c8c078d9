"""Data of any kind: arrays, tables and texts become one form, with their names, groups and given split."""

from __future__ import annotations

import logging
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedl2g.datasets import load_dataset, make_partition
from fedl2g.datasets.dataset import Dataset, Scaling
from fedl2g.datasets.memory import store_frame
from fedl2g.datasets.tables import Roles
from fedl2g.datasets.text import MAX_TOKENS, token_id, tokens_of
from fedl2g.errors import DataError
from fedl2g.learning.preparation import preparation
from fedl2g.schema import Column, Schema

LABELS = np.array(["no", "yes", "no", "yes"])


def saved(folder: Path, **arrays: Any) -> str:
    np.savez(folder / "mine.npz", **arrays)
    return str(folder / "mine.npz")


def loaded(folder: Path, **arrays: Any) -> Dataset:
    return load_dataset(saved(folder, labels=LABELS, **arrays), data_dir=folder / "cache")


@pytest.mark.parametrize(
    ("inputs", "schema", "dtype"),
    [
        (np.zeros((4, 3, 50)), Schema("signal", (3, 50)), "float32"),
        (np.zeros((4, 2), int), Schema("table", (2,), (Column("0"), Column("1"))), "float32"),
        (np.zeros((4, 8, 6), np.uint16), Schema("image", (1, 8, 6)), "uint16"),
        (np.zeros((4, 8, 6, 3)), Schema("image", (3, 8, 6)), "float32"),
        (np.array(["a b", "c", "d", "e f g"]), Schema("text", (3,), vocabulary=1 << 14), "int16"),
    ],
)
def test_the_kind_of_an_array_is_recognised(tmp_path: Path, inputs: Any, schema: Schema, dtype: str) -> None:
    dataset = loaded(tmp_path, inputs=inputs)
    assert (dataset.schema, str(dataset.inputs.dtype)) == (schema, dtype)
    assert (dataset.class_names, dataset.labels.tolist()) == (("no", "yes"), [0, 1, 0, 1])
    assert isinstance(dataset.inputs, np.memmap)
    again = Dataset.open(dataset.folder)  # type: ignore[arg-type]
    assert (again.schema, again.fingerprint) == (dataset.schema, dataset.fingerprint)


def test_groups_a_split_and_a_named_kind_come_along(tmp_path: Path) -> None:
    ids = np.array([[5, 7, 0], [3, 0, 0], [9, 9, 9], [1, 2, 0]])
    dataset = loaded(tmp_path, inputs=ids, kind="text", groups=["x", "y", "x", "y"], split=["train", "test"] * 2)
    assert dataset.schema == Schema("text", (3,), vocabulary=10)
    assert (dataset.group_column, dataset.group_names) == ("group", ("x", "y"))
    assert dataset.groups is not None
    assert dataset.groups.tolist() == [0, 1, 0, 1]
    assert dataset.split is not None
    assert dataset.split.tolist() == [0, 1, 0, 1]
    few = load_dataset(str(tmp_path / "mine.npz"), samples=2, data_dir=tmp_path / "cache")
    assert few.split is not None
    assert (few.schema, len(few.split), few.group_names) == (dataset.schema, 2, ("x", "y"))


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"inputs": np.zeros((4, 3, 5)), "images": np.zeros((4, 3, 5))}, "both 'images' and 'inputs'"),
        ({"inputs": np.zeros((4, 3, 5)), "kind": "sound"}, "its kind is 'sound'; known: image, signal"),
        ({"inputs": np.full((4, 3, 5), np.nan)}, "signals have values that are missing"),
        ({"inputs": np.full((4, 3), np.inf)}, "numbers that are infinite, or larger than 3.4e"),
        ({"inputs": np.full((4, 3), 1e39)}, "numbers that are infinite, or larger than 3.4e"),
        ({"inputs": np.full((4, 3, 5), 1e39)}, "infinite or larger than 3.4e"),
        ({"inputs": np.zeros((4, 3)), "columns": ["a"]}, "it has the names a for 3 columns"),
        ({"inputs": np.zeros((4, 3), int), "kind": "text"}, "no token id"),
        ({"inputs": np.zeros((4, 3)), "split": ["train", "test", "train", "later"]}, "split has 'later'"),
        ({"inputs": np.zeros((4, 3)), "split": ["train"]}, "its split is of shape"),
        ({"inputs": np.zeros((4, 3)), "groups": [0] * 4, "domains": [0] * 4}, "both 'domains' and 'groups'"),
        ({"inputs": np.zeros(4)}, r"expected images \(N x H x W"),
        ({"images": np.zeros((4, 5, 5)), "mean": [0.0], "std": [0.0]}, "every std above 0"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        loaded(tmp_path, **arrays)


def prepared(dataset: Dataset, train: list[int]) -> torch.Tensor:
    stored = torch.from_numpy(np.array(dataset.inputs))
    prepare = preparation(dataset, stored.dtype, torch.float64)
    prepare.fit(iter([stored[train[:1]], stored[train[1:]]]))
    return prepare.batch(stored)


def test_images_are_scaled_by_the_range_of_their_type_or_as_given(tmp_path: Path) -> None:
    deep = np.array([0, 65535, 13107, 26214], np.uint16).reshape(4, 1, 1)
    assert prepared(loaded(tmp_path, inputs=deep), []).flatten().tolist() == pytest.approx([-1, 1, -0.6, -0.2])
    fractions = np.array([0, 1, 0.5, 0.25]).reshape(4, 1, 1)
    assert prepared(loaded(tmp_path, images=fractions), []).flatten().tolist() == [-1, 1, 0, -0.5]
    given = loaded(tmp_path, images=10 * fractions, mean=[5.0], std=[2.0])
    assert given.scaling == Scaling((5.0,), (2.0,))
    assert prepared(given, []).flatten().tolist() == [-2.5, 2.5, 0, -1.25]


def test_signals_are_standardised_by_channel_with_the_train_samples_alone(tmp_path: Path) -> None:
    signals = np.random.default_rng(0).normal(5e4, 3.0, (4, 2, 9)).astype(np.float32)
    signals[:, 1] = 7.0  # a channel that never changes is only centred
    found = prepared(loaded(tmp_path, inputs=signals), [0, 2])
    own = signals[[0, 2], 0].astype(np.float64)
    expected = (signals[:, 0].astype(np.float64) - own.mean()) / own.std()
    np.testing.assert_allclose(found[:, 0].numpy(), expected, rtol=1e-7, atol=1e-9)
    assert found[:, 1].abs().max() == 0


def table(folder: Path, **columns: Any) -> str:
    frame = pd.DataFrame(
        {
            "age": [30.0, None, 50.0, 70.0],
            "sex": ["f", "m", None, "f"],
            "smokes": [True, False, True, True],
            "hospital": ["north", "south", "north", "south"],
            "ill": LABELS,
            **columns,
        }
    )
    frame.to_csv(folder / "patients.csv", index=False)
    return str(folder / "patients.csv")


def test_a_table_has_numbers_and_categories_and_says_what_is_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        dataset = load_dataset(table(tmp_path), data_dir=tmp_path / "c", roles=Roles("ill", group="hospital"))
    assert "values are missing (age 1, sex 1); a missing number becomes the mean" in caplog.text
    assert dataset.schema.columns == (Column("age"), Column("sex", ("f", "m")), Column("smokes"))
    assert (dataset.class_names, dataset.group_column, dataset.group_names) == (
        ("no", "yes"), "hospital", ("north", "south"),
    )  # fmt: skip
    np.testing.assert_array_equal(dataset.inputs, [[30, 1, 1], [np.nan, 2, 0], [50, 0, 1], [70, 1, 1]])
    found = prepared(dataset, [0, 1, 2])
    mean, std = 40.0, 10.0  # of 30 and 50: the missing one is left out
    assert found[:, 0].tolist() == [(30 - mean) / std, 0.0, 1.0, 3.0]
    assert found[:, 1].tolist() == [1, 2, 0, 1]


def test_parquet_is_the_same_table(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    first = load_dataset(table(tmp_path), data_dir=tmp_path / "c", roles=Roles("ill"))
    pd.read_csv(tmp_path / "patients.csv").to_parquet(tmp_path / "patients.parquet")
    second = load_dataset(str(tmp_path / "patients.parquet"), data_dir=tmp_path / "c", roles=Roles("ill"))
    assert first.fingerprint == second.fingerprint


def test_texts_of_a_column_are_hashed_tokens(tmp_path: Path) -> None:
    path = table(tmp_path, title=["Good news!", "bad", None, "Good"], body=["a", "b", "c", "d"])
    dataset = load_dataset(path, data_dir=tmp_path / "c", roles=Roles("ill", ("title", "body")))
    assert tokens_of("Good news! a") == ["good", "news", "!", "a"]
    assert dataset.inputs[0].tolist() == [token_id(word) for word in ("good", "news", "!", "a")]
    assert dataset.inputs[2].tolist() == [token_id("c"), 0, 0, 0]
    assert token_id("good") == 3611  # the same on every machine
    assert len(tokens_of("word " * 1000)) == MAX_TOKENS
    stored = torch.from_numpy(np.array(dataset.inputs))
    prepare = preparation(dataset, stored.dtype, torch.float32)
    assert prepare.batch(stored[1:]).shape == (3, 2)  # as wide as its longest
    assert prepare(stored[1:]).dtype == torch.int64


@pytest.mark.parametrize(
    ("roles", "columns", "words"),
    [
        (Roles(), {}, "no column is named as its label; choose one of age, sex"),
        (Roles("il"), {}, "label: .* has no column 'il'; .*'ill'"),
        (Roles("ill", ignore=("agee",)), {}, "ignore: .* has no column 'agee'"),
        (Roles("sex"), {}, "labels are missing in 1 of its 4 rows .the first is row 3 below the names"),
        (Roles("ill"), {"when": pd.to_datetime(["2020-01-01"] * 4)}, "smokes|categories"),
        (Roles("ill", group="town"), {}, "partition: .* has no column 'town'"),
        (Roles("ill", ("ill",)), {}, "text: the column 'ill' .* holds the labels; expected other columns"),
        (Roles("ill"), {"age": [1.0, 2.0, 1e39, 3.0]}, "'age' has numbers that are infinite, or larger than 3.4e"),
        (Roles("ill"), {"split": ["train", "test", "holdout", "train"]}, "its split has 'holdout'"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(tmp_path: Path, roles: Roles, columns: Any, words: str) -> None:
    if "when" in columns:
        assert load_dataset(table(tmp_path, **columns), data_dir=tmp_path / "c", roles=roles).shape == (5,)
        return
    with pytest.raises(DataError, match=words):
        load_dataset(table(tmp_path, **columns), data_dir=tmp_path / "c", roles=roles)


def test_missing_values_do_not_change_what_a_column_is(tmp_path: Path) -> None:
    """pandas reads truth values with gaps as objects, and whole numbers with gaps as fractions."""
    path = table(tmp_path, smokes=[True, None, False, True], grade=[1, 2, None, 1])
    dataset = load_dataset(path, data_dir=tmp_path / "c", roles=Roles("ill", ignore=("age", "sex", "hospital")))
    assert dataset.schema.columns == (Column("smokes"), Column("grade"))
    np.testing.assert_array_equal(dataset.inputs, [[1, 1], [np.nan, 2], [0, np.nan], [1, 1]])
    coded = Schema("table", (2,), (Column("smokes"), Column("grade", ("1", "2"))))
    dataset = load_dataset(path, data_dir=tmp_path / "c", roles=Roles("ill", inputs=coded))
    np.testing.assert_array_equal(dataset.inputs, [[1, 1], [np.nan, 2], [0, 0], [1, 1]])
    coded = Schema("table", (2,), (Column("smokes"), Column("grade", ("1", "3"))))
    with pytest.raises(DataError, match="the column 'grade' has '2'; expected one of 1, 3"):
        load_dataset(path, data_dir=tmp_path / "c", roles=Roles("ill", inputs=coded))


def test_decimals_of_parquet_are_numbers(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"amount": [Decimal("1.25"), Decimal(3), None, Decimal("-2.5")], "ill": LABELS})
    frame.to_parquet(tmp_path / "t.parquet")
    dataset = load_dataset(str(tmp_path / "t.parquet"), data_dir=tmp_path / "c", roles=Roles("ill"))
    assert dataset.schema.columns == (Column("amount"),)
    np.testing.assert_array_equal(dataset.inputs[:, 0], [1.25, 3, np.nan, -2.5])


@pytest.mark.parametrize("mark", [";", "\t"])
def test_other_separators_are_named(tmp_path: Path, mark: str) -> None:
    pd.read_csv(table(tmp_path)).to_csv(tmp_path / "t.csv", index=False, sep=mark)
    with pytest.raises(DataError, match=f"separated by {re.escape(repr(mark))}; expected commas; convert it"):
        load_dataset(str(tmp_path / "t.csv"), data_dir=tmp_path / "c", roles=Roles("ill"))


def test_missing_texts_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = table(tmp_path, title=["Good", None, "bad", None])
    with caplog.at_level(logging.WARNING):
        load_dataset(path, data_dir=tmp_path / "c", roles=Roles("ill", ("title",)))
    assert "values are missing (title 2); a missing text is empty" in caplog.text


@pytest.mark.parametrize("roles", [Roles("ill"), Roles(text=("title",)), Roles(ignore=("age",))])
def test_columns_are_refused_where_there_are_none(tmp_path: Path, roles: Roles) -> None:
    mine = saved(tmp_path, inputs=np.zeros((4, 2)), labels=LABELS)
    for name in (mine, "wine"):
        with pytest.raises(DataError, match=f"{roles.named[0]}: .* has no columns to choose from; .* leave it out"):
            load_dataset(name, data_dir=tmp_path / "c", roles=roles)


def test_an_identifier_is_no_category(tmp_path: Path) -> None:
    pd.DataFrame({"id": [f"p{n}" for n in range(30)], "y": [0, 1] * 15}).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError, match=r"'id' has 30 different texts in 30 rows.*--ignore id"):
        load_dataset(str(tmp_path / "t.csv"), data_dir=tmp_path / "c", roles=Roles("y"))


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("price", np.linspace(0.25, 6.0, 24).repeat(2)),  # a quantity
        ("id", np.arange(48)),
        ("name", [f"p{n}" for n in range(48)]),
    ],
)
def test_what_is_no_class_is_no_label(name: str, labels: Any, tmp_path: Path) -> None:
    pd.DataFrame({"x": np.arange(48.0), name: labels}).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError, match=f"label: the column '{name}' .* different values in 48 rows; expected classes"):
        load_dataset(str(tmp_path / "t.csv"), data_dir=tmp_path / "c", roles=Roles(name))


def test_many_classes_and_halves_are_labels(tmp_path: Path) -> None:
    for labels, classes in (([n // 2 for n in range(60)], 30), ([n % 10 / 2 for n in range(60)], 10)):
        pd.DataFrame({"x": np.arange(60.0), "y": labels}).to_csv(tmp_path / "t.csv", index=False)
        found = load_dataset(str(tmp_path / "t.csv"), data_dir=tmp_path / str(classes), roles=Roles("y"))
        assert found.classes == classes


def test_a_mark_among_numbers_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    values = ["?", *(f"{n / 4}" for n in range(47))]
    codes = [f"{n}" if n % 2 else f"V{n}" for n in range(48)]  # of a nomenclature: they are categories
    codes[0] = codes[2]
    values[2] = values[3]
    frame = pd.DataFrame({"age": values, "code": codes, "y": [0, 1] * 24})
    frame.to_csv(tmp_path / "t.csv", index=False)
    with caplog.at_level(logging.WARNING):
        load_dataset(str(tmp_path / "t.csv"), data_dir=tmp_path / "c", roles=Roles("y"))
    assert "the column 'age' is read as 47 categories, because it has '?' among its numbers" in caplog.text
    assert "'code'" not in caplog.text


def test_columns_named_by_numbers_are_found(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({0: [1.0, 2.0, 3.0, 4.0], 1: LABELS})
    frame.to_parquet(tmp_path / "t.parquet")
    stored = [
        load_dataset(str(tmp_path / "t.parquet"), data_dir=tmp_path / "c", roles=Roles("1")),
        store_frame(frame, Roles("1"), "mine", data_dir=tmp_path / "c"),
    ]
    assert [dataset.schema.columns for dataset in stored] == [(Column("0"),)] * 2
    with pytest.raises(DataError, match="more than one column '0'"):
        store_frame(frame.set_axis(["0", "0"], axis=1), Roles("0"), "mine", data_dir=tmp_path / "c")


def test_a_given_split_is_respected_and_leaves_no_trace_in_the_inputs(tmp_path: Path) -> None:
    path = table(tmp_path, split=["train", "train", "test", "test"])
    dataset = load_dataset(path, data_dir=tmp_path / "c", roles=Roles("ill", group="hospital"))
    assert "split" not in [column.name for column in dataset.schema.columns]
    found = make_partition(
        "by:hospital", dataset.labels, dataset.groups, clients=2, classes=2, seed=0, column="hospital",
        split=dataset.split,
    )  # fmt: skip
    assert [part.tolist() for part in found.train] == [[0], [1]]
    assert [part.tolist() for part in found.test] == [[2], [3]]
    with pytest.raises(DataError, match="leaves client 0 without train samples of the split"):
        make_partition("by:x", dataset.labels, dataset.split, clients=2, classes=2, seed=0, column="x",
                       split=1 - dataset.split)  # fmt: skip


def test_groups_are_clients(caplog: pytest.LogCaptureFixture) -> None:
    labels, groups = np.zeros(30, int), np.repeat([0, 1, 2], 10)
    settings: dict[str, Any] = {"classes": 1, "seed": 0, "column": "subject"}
    found = make_partition("by:subject", labels, groups, clients=3, **settings)
    assert [set(groups[held].tolist()) for held in found.holdings] == [{0}, {1}, {2}]
    with caplog.at_level(logging.WARNING):
        make_partition("by:subject", labels, groups, clients=2, **settings)
    assert "by:subject has 3 groups for 2 clients: only the first 2 are used; set clients = 3" in caplog.text
    with pytest.raises(DataError, match="this dataset has the groups 'subject'; choose by:subject"):
        make_partition("by:camera", labels, groups, clients=3, **settings)
    with pytest.raises(DataError, match="this dataset has no groups; choose another partition"):
        make_partition("by:camera", labels, None, clients=3, **settings)
