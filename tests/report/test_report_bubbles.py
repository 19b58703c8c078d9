"""Pictures of partitions: right numbers in the text, a file of the right kind on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedl2g.datasets import Partition, make_partition
from fedl2g.errors import SettingError
from fedl2g.report.bubbles import bubble_table, draw_bubbles


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


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")])
def test_the_suffix_decides_the_format(tmp_path: Path, suffix: str, magic: bytes) -> None:
    labels = np.repeat(np.arange(4), 10)
    partition = make_partition("pathological:2", labels, None, clients=4, classes=4, seed=0)
    draw_bubbles(partition, labels, 4, tmp_path / f"bubbles{suffix}", title="four clients")
    assert (tmp_path / f"bubbles{suffix}").read_bytes().startswith(magic)


def test_one_client_with_equal_counts_can_be_drawn(tmp_path: Path) -> None:
    labels = np.repeat(np.arange(2), 10)
    partition = make_partition("iid", labels, None, clients=1, classes=2, seed=0)
    draw_bubbles(partition, labels, 2, tmp_path / "one.png")
    assert (tmp_path / "one.png").stat().st_size > 2000


def test_other_formats_are_refused(tmp_path: Path) -> None:
    labels = np.repeat(np.arange(2), 10)
    partition = make_partition("iid", labels, None, clients=1, classes=2, seed=0)
    with pytest.raises(SettingError, match=r"ends in \.png, \.pdf, \.svg"):
        draw_bubbles(partition, labels, 2, tmp_path / "bubbles.bmp")
