"""Data and networks from a script or notebook."""

from __future__ import annotations

import functools
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedl2g import session
from fedl2g.api.data import data
from fedl2g.api.networks import models_setting
from fedl2g.datasets import load_dataset
from fedl2g.errors import DataError, SettingError
from fedl2g.models import build_model
from fedl2g.schema import image_schema


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDL2G_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


def pixels(count: int = 6) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)


LABELS = [0, 1, 0, 1, 0, 1]


def test_arrays_are_stored_once_by_content(own_cache):
    first, again = data(pixels(), LABELS), data(pixels().copy(), np.array(LABELS))
    assert first.settings["dataset"] == again.settings["dataset"]
    assert first.settings["dataset"] != data(pixels(), LABELS[::-1]).settings["dataset"]
    assert sum(entry.is_dir() for entry in own_cache.iterdir()) == 2
    np.testing.assert_array_equal(first.dataset.inputs, pixels().transpose(0, 3, 1, 2))
    assert data(pixels(), np.array(LABELS, np.uint8)).settings == first.settings


def test_stored_arrays_open_by_name_in_another_process():
    source = data(pixels(), LABELS).settings["dataset"]
    code = f"import fedl2g.datasets as d; x = d.load_dataset({source!r}); print(len(x), x.labels.tolist())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "6 [0, 1, 0, 1, 0, 1]"


def test_missing_stored_arrays_are_one_sentence():
    with pytest.raises(DataError, match=r"is not in the cache .*; call fedl2g\.data"):
        load_dataset("in-memory:data-0123456789abcdef")


def test_a_name_with_folders_stays_in_the_cache(own_cache, tmp_path):
    made = data(pixels(), LABELS).dataset.folder
    (tmp_path / "outside").mkdir()
    for file in made.iterdir():
        (tmp_path / "outside" / file.name).write_bytes(file.read_bytes())
    with pytest.raises(DataError, match="is not in the cache"):
        load_dataset("in-memory:../outside")


def test_a_torch_dataset_gives_the_same_data_as_its_arrays():
    fractions = torch.from_numpy(pixels()).permute(0, 3, 1, 2) / 255
    pairs = TensorDataset(fractions, torch.tensor(LABELS))
    np.testing.assert_array_equal(data(pairs).dataset.inputs, data(pixels(), LABELS).dataset.inputs)
    assert data(pairs).dataset.labels.tolist() == LABELS


def test_a_data_frame_gives_the_same_data_as_its_columns():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"image": list(pixels()), "kind": ["a", "b"] * 3})
    made = data(frame, "kind").dataset
    np.testing.assert_array_equal(made.inputs, data(pixels(), LABELS).dataset.inputs)
    assert made.class_names == ("a", "b")
    assert made.labels.tolist() == LABELS
    with pytest.raises(DataError, match="has no column 'label'; it has image, kind"):
        data(frame)


def test_lists_of_whole_numbers_are_pixels():
    np.testing.assert_array_equal(data(pixels().tolist(), LABELS).dataset.inputs, data(pixels(), LABELS).dataset.inputs)
    with pytest.raises(DataError, match="its images are of type int64; expected uint8"):
        data(pixels().astype(int) + 1, LABELS)


def test_wrong_data_gets_a_short_sentence():
    pandas = pytest.importorskip("pandas")
    for wrong, message in (
        (lambda: data(pixels()), "labels are missing"),
        (lambda: data(None, LABELS), "^data: nothing holds no samples; expected arrays"),
        (lambda: data({"a": 1}, LABELS), "^data: a dict holds no samples; expected arrays"),
        (
            lambda: data(pixels(), np.zeros_like(LABELS)),
            "^labels: all samples are of one class, .* expected at least two",
        ),
        (
            lambda: data(pandas.DataFrame({"a": [1.0, 2.0], "label": [0, 1]}), groups="b"),
            "^groups: .* no column 'b'; kn",
        ),
        (lambda: data(pixels() / 10.0, LABELS), "values from 0 to 25.5; expected fractions 0..1"),
        (lambda: data([pixels()[0], pixels()[0, :4]], [0, 1]), "do not form an array"),
        (lambda: data([1, 2, 3]), "item 0 of the dataset is not an \\(input, label\\) pair"),
        (lambda: data(np.zeros((6, 3, 50)), LABELS, kind="sound"), "kind: 'sound' is not known"),
        (lambda: data(np.zeros((6, 3)), LABELS, kind="signal"), "its signals are of type float64 and shape"),
        (lambda: data(np.zeros((6, 3)), LABELS, ignore="a"), "text, ignore: name columns"),
    ):
        with pytest.raises(DataError, match=message) as caught:
            wrong()
        assert len(str(caught.value)) < 300


def test_signals_tables_and_texts_are_data_too():
    signals = np.random.default_rng(0).normal(size=(6, 3, 50))
    made = data(signals, LABELS, kind="signal", groups=["a", "b", "c"] * 2)
    assert repr(made) == "<fedl2g data 'data': 6 signals of 3 x 50, 2 classes>"
    np.testing.assert_array_equal(made.dataset.inputs, signals.astype(np.float32))
    assert (made.dataset.group_names, made.dataset.group_column) == (("a", "b", "c"), "group")
    assert data(torch.rand(6, 4), LABELS).dataset.schema.kind == "table"
    texts = data(["a cat", "a dog", "a cat again", "dogs", "cat", "dog"], ["c", "d"] * 3)
    assert (texts.dataset.schema.kind, texts.dataset.class_names) == ("text", ("c", "d"))
    assert load_dataset(texts.settings["dataset"]).schema == texts.dataset.schema


def test_arrays_keep_the_split_they_come_with():
    given = ["train", "test", "train", "train", "dev", "train"]
    assert data(pixels(), LABELS, split=given).dataset.split.tolist() == [0, 1, 0, 0, 2, 0]
    assert data(pixels(), LABELS, split=np.array(given, dtype=object)).dataset.split.tolist() == [0, 1, 0, 0, 2, 0]
    assert data(pixels(), LABELS).dataset.split is None
    for wrong in (["train"] * 5, ["train"] * 6, [0, 1] * 3):
        with pytest.raises(DataError, match=r"its split (is of shape|has)"):
            data(pixels(), LABELS, split=wrong)


@pytest.mark.parametrize("given", [{"kind": "image"}, {"groups": [0, 1]}, {"split": ["train"]}, {"class_names": ["a"]}])
def test_what_a_named_dataset_says_itself_is_refused(given):
    with pytest.raises(DataError, match=f"{next(iter(given))}: does not apply to the name of a dataset or file"):
        data("digits", **given)


def test_a_data_frame_of_columns_is_a_table_or_texts():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "age": [30.0, 40.0, None, 60.0, 70.0, 80.0],
            "sex": list("fmfmfm"),
            "number": [f"p{n}" for n in range(6)],
            "note": ["well", "very ill", "ill", "well", "quite well", "ill"],
            "hospital": ["north", "south"] * 3,
            "label": ["well", "ill"] * 3,
        }
    )
    table = data(frame, groups="hospital", ignore=["number", "note"]).dataset
    assert [column.name for column in table.schema.columns] == ["age", "sex"]
    assert (table.group_column, table.group_names) == ("hospital", ("north", "south"))
    assert table.class_names == ("ill", "well")
    assert data(frame, groups="hospital", ignore=["number", "note"]).dataset.folder == table.folder
    assert data(frame.assign(age=1.0), groups="hospital", ignore=["number", "note"]).dataset.folder != table.folder
    notes = data(frame, text="note")
    assert notes.dataset.schema.kind == "text"
    assert load_dataset(notes.settings["dataset"]).labels.tolist() == [1, 0] * 3
    for wrong, message in (
        (lambda: data(frame, "state"), "label: data has no column 'state'"),
        (lambda: data(frame, groups="clinic"), "groups: the DataFrame has no column 'clinic'"),
        (lambda: data(frame, labels=LABELS), "labels: .* is not the name of a column"),
        (lambda: data(frame, class_names=["a"]), "class_names: does not apply to a table"),
    ):
        with pytest.raises(DataError, match=message):
            wrong()


def test_a_file_is_named_with_the_columns_of_its_table(tmp_path):
    (tmp_path / "patients.csv").write_text("age,state\n" + "".join(f"{n},{'ab'[n % 2]}\n" for n in range(8)))
    found = data(tmp_path / "patients.csv", "state")
    assert found.settings == {"dataset": str(tmp_path / "patients.csv"), "label": "state"}
    assert (len(found), found.dataset.classes) == (8, 2)


WIDTH = 2


def session_network(reference: str):
    return getattr(session, reference.partition(":")[2])


class Net(nn.Module):
    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(192, 16))
        self.fc = nn.Linear(16, classes)

    def forward(self, x):
        return self.fc(self.body(x))


def test_a_class_of_a_file_is_its_reference():
    assert models_setting([Net, "cnn4"]) == f"{__name__}:Net,cnn4"


def test_a_class_of_a_notebook_lives_in_the_session():
    def make(classes: int) -> nn.Module:
        return Net(classes)

    name = models_setting(make)
    assert session.is_kept(name)
    assert models_setting(make) == name
    built = build_model(name, classes=3, inputs=image_schema(3, 8, 8))
    assert built(torch.zeros(2, 3, 8, 8))[1].shape == (2, 3)


def test_copies_of_a_network_start_with_its_weights():
    network = Net()
    name = models_setting(network)
    one, two = (build_model(name, classes=2, inputs=image_schema(3, 8, 8)) for _ in range(2))
    given = network.body[1].weight
    for built in (one, two):
        assert any(torch.equal(p, given) and p is not given for p in built.parameters() if p.shape == given.shape)
    assert not {id(p) for p in one.parameters()} & {id(p) for p in two.parameters()}
    before = given.detach().clone()
    with torch.no_grad():
        given.add_(1)
    assert models_setting(network) != name
    again = build_model(name, classes=2, inputs=image_schema(3, 8, 8))
    assert any(torch.equal(p, before) for p in again.parameters())


def test_what_makes_other_networks_has_another_name(monkeypatch):
    def of_width(width: int):
        return lambda: nn.Linear(192, width)

    def of_a_global():
        return nn.Linear(192, WIDTH)

    a, b = lambda: nn.Linear(192, 2), lambda: nn.Linear(192, 3)  # one line of source
    first, other = models_setting([a, b]).split(",")
    assert first != other
    assert models_setting(of_width(2)) == models_setting(of_width(2)) != models_setting(of_width(3))
    assert models_setting(functools.partial(Net, 2)) != models_setting(functools.partial(Net, 3))
    before = models_setting(of_a_global)
    monkeypatch.setitem(globals(), "WIDTH", 3)
    assert models_setting(of_a_global) != before
    for name, width in ((first, 2), (other, 3)):
        assert session_network(name)().out_features == width


def test_the_same_cell_in_another_session_gives_the_same_names(tmp_path):
    cell = """
import functools
from torch import nn
from fedl2g.api.networks import models_setting

WIDTHS = {"a", "b", "c"}

class Base(nn.Module):
    pass

class Net(Base):
    width = 4
    def __init__(self, classes):
        super().__init__()
        self.fc = nn.Linear(192, self.width + len(WIDTHS))
    def forward(self, x):
        return self.fc(x) if x.dtype in {"a", "b"} else Net.forward(self, x)

print(models_setting([Net, functools.partial(Net, 3), lambda: Net(5), nn.Flatten()]))
"""
    (tmp_path / "cell.py").write_text(cell)
    (tmp_path / "edited.py").write_text(cell.replace("width = 4", "width = 5"))
    names = [
        subprocess.run([sys.executable, str(tmp_path / file)], capture_output=True, text=True, check=True).stdout.split(
            ","
        )
        for file in ("cell.py", "cell.py", "edited.py")
    ]
    assert names[0] == names[1]
    assert [one == other for one, other in zip(names[0], names[2], strict=True)] == [False, False, False, True]


def test_another_session_says_how_to_put_it_in_a_file():
    with pytest.raises(SettingError, match="Net_0 was defined in another Python session; put it in a file"):
        build_model("fedl2g.session:Net_0", classes=2, inputs=image_schema(3, 8, 8))


def test_anything_but_a_network_is_refused():
    with pytest.raises(SettingError, match="models: a float is not a network"):
        models_setting([1.5])
    with pytest.raises(SettingError, match="models: an array is not a network"):
        models_setting([pixels()])
    with pytest.raises(SettingError, match="Sequential has lazy layers without weights yet; call it once"):
        models_setting(nn.Sequential(nn.Flatten(), nn.LazyLinear(2)))


def test_networks_of_a_session_are_told_by_their_names_while_these_are_clear():
    one, two = models_setting(Net(2)), models_setting(Net(3))
    assert session.readable((one, "cnn4")) == ("Net", "cnn4")
    assert session.readable((one, two)) == (one.partition(":")[2], two.partition(":")[2])
    assert session.readable((f"{__name__}:Net",)) == (f"{__name__}:Net",)
