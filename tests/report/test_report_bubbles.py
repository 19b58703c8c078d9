"""Pictures of partitions: right numbers in the text, a file of the right kind on disk."""

from __future__ import annotations

import math
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from fedl2g.datasets import Partition, make_partition
from fedl2g.errors import SettingError
from fedl2g.report.bubbles import bubble_table, draw_bubbles
from fedl2g.report.charts.bubbles import ticks
from fedl2g.report.charts.theme import Look
from fedl2g.report.drawings import partition_of_data

SVG = "{http://www.w3.org/2000/svg}"


def test_the_table_shows_sizes_and_grows_its_dots() -> None:
    labels = np.repeat([0, 1, 2], [100, 40, 5])
    held = [np.arange(0, 100), np.arange(100, 145)]
    partition = Partition(tuple(a[:-2] for a in held), tuple(a[-2:] for a in held))
    lines = bubble_table(partition, labels, 4).splitlines()
    assert lines[0].split() == ["client", "train", "test", "classes", "class"]
    assert lines[1].split() == ["0", "98", "2", "1", "●"]
    assert lines[2].split() == ["1", "43", "2", "2", "•·"]


def test_many_classes_share_dots_to_fit_a_terminal() -> None:
    labels = np.repeat(np.arange(345), 10)
    table = bubble_table(make_partition("iid", labels, None, clients=3, classes=345, seed=0), labels, 345)
    assert "(6 to a dot)" in table
    assert max(map(len, table.splitlines())) <= 100


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<svg")])
def test_the_suffix_decides_the_format(tmp_path: Path, suffix: str, magic: bytes) -> None:
    labels = np.repeat(np.arange(4), 10)
    partition = make_partition("pathological:2", labels, None, clients=4, classes=4, seed=0)
    draw_bubbles(partition, labels, list("abcd"), tmp_path / f"bubbles{suffix}", title="four clients")
    assert (tmp_path / f"bubbles{suffix}").read_bytes().startswith(magic)


def test_a_circle_shows_the_samples_of_a_client_and_class() -> None:
    labels = np.repeat([0, 1, 2], [10, 4, 1])
    partition = Partition((np.arange(0, 8), np.arange(8, 14)), (np.arange(14, 15), np.arange(0)))
    (cells,) = partition_of_data(partition, labels, ["cat", "dog", "fox"], Look()).data.values
    assert cells == {
        "client": [0, 0, 1, 1],
        "label": [0, 2, 0, 1],
        "samples": [8, 1, 2, 4],
        "name": ["cat", "fox", "cat", "dog"],
    }


@pytest.mark.parametrize(("clients", "classes"), [(1, 2), (2, 10), (20, 10), (3, 40)])
def test_circles_neither_overlap_nor_leave_the_chart(clients: int, classes: int, tmp_path: Path) -> None:
    labels = np.repeat(np.arange(classes), 10 * clients)
    partition = make_partition("iid", labels, None, clients=clients, classes=classes, seed=0)
    draw_bubbles(partition, labels, [str(k) for k in range(classes)], tmp_path / "bubbles.svg")
    drawn = ElementTree.fromstring((tmp_path / "bubbles.svg").read_bytes())
    circles = next(g for g in drawn.iter(f"{SVG}g") if g.get("class") == "mark-symbol role-mark layer_0_marks")
    found = []
    for circle in circles:
        x, y = (float(number) for number in re.findall(r"[-\d.]+", circle.attrib["transform"]))
        found.append((x, y, float(circle.attrib["d"].removeprefix("M").split(",")[0])))  # "M r,0 A r,r ..."
    assert len(found) == clients * classes
    spec = partition_of_data(partition, labels, [str(k) for k in range(classes)], Look()).to_dict()
    for n, (x, y, radius) in enumerate(found):
        assert radius <= x <= spec["width"] - radius
        assert radius <= y <= spec["height"] - radius
        for a, b, other in found[:n]:
            assert math.hypot(x - a, y - b) >= radius + other


def test_an_axis_has_at_most_25_ticks() -> None:
    assert ticks(3) == [0, 1, 2]
    assert ticks(26) == list(range(0, 26, 2))
    assert ticks(100) == list(range(0, 100, 5))
    assert ticks(345) == list(range(0, 345, 20))


def test_other_formats_are_refused(tmp_path: Path) -> None:
    labels = np.repeat(np.arange(2), 10)
    partition = make_partition("iid", labels, None, clients=1, classes=2, seed=0)
    with pytest.raises(SettingError, match=r"ends in \.png, \.pdf, \.svg"):
        draw_bubbles(partition, labels, ["a", "b"], tmp_path / "bubbles.bmp")
