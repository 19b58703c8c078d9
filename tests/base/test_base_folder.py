"""Folders filled by somebody else: nothing is followed out of them, only regular files of a bounded size are read."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedl2g.display import OneLine, visible
from fedl2g.errors import RunError
from fedl2g.folder import MIB, Folder
from fedl2g.seals import read_sealed, write_sealed


def link(path: Path, outside: Path) -> None:
    path.symlink_to(outside)


def dangling_link(path: Path, outside: Path) -> None:
    path.symlink_to(outside.with_name("not yet"))


def fifo(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def device(path: Path, outside: Path) -> None:
    path.symlink_to("/dev/zero")


def listening_socket(path: Path, outside: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


STRANGE = [link, dangling_link, fifo, device, listening_socket]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "outside"
    path.write_text("mine")
    return path


@pytest.mark.parametrize("made", STRANGE)
def test_what_is_no_regular_file_is_neither_read_nor_written(
    made: Callable[[Path, Path], None], outside: Path, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    folder, path = Folder(tmp_path / "run"), tmp_path / "run" / "file"
    made(path, outside)
    started = time.monotonic()
    with pytest.raises(RunError, match="expected a regular file") as told:
        folder.read("file")
    assert "\n" not in str(told.value)
    with pytest.raises(RunError, match="expected a regular file"), folder.appending("file") as file:
        file.write(b"x")
    assert not folder.is_file("file")
    folder.write_text("file", "new")  # takes its place
    assert (path.read_text(), path.is_symlink()) == ("new", False)
    assert outside.read_text() == "mine"
    assert not outside.with_name("not yet").exists()
    assert time.monotonic() - started < 5


def test_no_folder_on_the_way_is_a_link(outside: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "inner").symlink_to(tmp_path / "elsewhere")
    folder = Folder(tmp_path / "run")
    uses: list[Callable[[], object]] = [
        lambda: folder.read("inner/file"),
        lambda: folder.write_text("inner/file", "x"),
        lambda: folder.make("inner"),
        lambda: folder.make("inner/deeper"),
        lambda: folder.remove("inner/file"),
        lambda: (folder / "inner").names(),
        lambda: (folder / "inner").remove_leftovers(),
        lambda: folder.is_folder("inner"),
        lambda: folder.status("inner/file"),
    ]
    for use in uses:
        with pytest.raises(RunError, match=r"inner: is a link"):
            use()
    folder.remove("inner")  # the link itself
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["file"]
    assert not (tmp_path / "run" / "inner").is_symlink()
    (tmp_path / "named").symlink_to(tmp_path / "run")  # what the user names may be a link
    Folder(tmp_path / "named").write_text("file", "x")
    assert (tmp_path / "run" / "file").read_text() == "x"


@pytest.mark.parametrize("name", ["../outside", "inner/../../outside", "/etc/passwd", "a//b", ".", "a\0b"])
def test_no_name_leads_out(name: str, outside: Path, tmp_path: Path) -> None:
    (tmp_path / "run" / "inner").mkdir(parents=True)
    with pytest.raises(RunError, match="not a name inside a folder"):
        Folder(tmp_path / "run").read(name)


def test_sizes_are_looked_at_before_anything_is_read(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**40)  # takes no room on the disk
    started = time.monotonic()
    with pytest.raises(RunError, match="too large; expected at most 1 MiB"):
        Folder(tmp_path).read("large")
    with pytest.raises(RunError, match="too large"), Folder(tmp_path).checked_path("large", 3 * MIB):
        pass
    assert time.monotonic() - started < 5


def test_another_name_of_a_file_is_not_written(outside: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    os.link(outside, tmp_path / "run" / "file")
    with pytest.raises(RunError, match="hard link"), Folder(tmp_path / "run").appending("file"):
        pass
    Folder(tmp_path / "run").write_text("file", "new")
    assert outside.read_text() == "mine"


def test_leftovers_are_removed_and_never_what_they_link_to(outside: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("mine")
    run = tmp_path / "run"
    run.mkdir()
    (run / ".a.partial-1").symlink_to(tmp_path / "elsewhere")
    (run / ".b.partial-2").symlink_to(outside)
    (run / ".c.partial-3" / "inner").mkdir(parents=True)
    Folder(run).remove_leftovers()
    assert not list(run.iterdir())
    assert (outside.read_text(), (tmp_path / "elsewhere" / "file").read_text()) == ("mine", "mine")


def test_a_sealed_file_is_noticed_when_any_bit_of_it_changes_its_values(tmp_path: Path) -> None:
    folder, values = Folder(tmp_path), {"a": 1.5, "b": ["x", None], "c": {"d": True}}
    write_sealed(folder, "file.json", values, of="run")
    assert read_sealed(folder, "file.json", "run") == values
    with pytest.raises(RunError, match="does not match its digest"):
        read_sealed(folder, "file.json", "another run")
    whole = (tmp_path / "file.json").read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            changed = bytearray(whole)
            changed[place] ^= 1 << bit
            (tmp_path / "file.json").write_bytes(changed)
            try:
                assert read_sealed(folder, "file.json", "run") == values
            except RunError as error:
                assert "\n" not in str(error)  # noqa: PT017 (either is right)


def test_text_is_made_visible() -> None:
    assert visible("plain, ö, 中, \N{NO-BREAK SPACE}x") == "plain, ö, 中, \N{NO-BREAK SPACE}x"
    assert visible("a\x1b[31mb\x07\r\n\x9b\u202e\udc80") == "a\\x1b[31mb\\x07\\r\\n\\x9b\\u202e\\udc80"
    assert visible("two\nlines", keep="\n") == "two\nlines"
    record = logging.LogRecord("a", logging.WARNING, "", 1, "said %s", ("x\nfedl2g: forged\x1b[2J",), None)
    assert OneLine("fedl2g: %(message)s").format(record) == "fedl2g: said x\\nfedl2g: forged\\x1b[2J"
