"""The one way to write a file: old or new, never half, whatever fails and whenever the process dies."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedl2g import files
from fedl2g.errors import RunError
from fedl2g.files import appearing, reason_of, remove_leftovers, replacing, write_text

FORK = multiprocessing.get_context("fork")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fill(folder: Path, content: str) -> None:
    (folder / "inner").mkdir(parents=True)
    (folder / "a").write_text(content)
    (folder / "inner" / "b").write_text(content)


def content(folder: Path) -> list[str]:
    return [(folder / name).read_text() for name in ("a", "inner/b")]


def test_a_file_and_a_folder_take_the_place_of_the_old(tmp_path: Path) -> None:
    for new in ("first", "second"):
        write_text(tmp_path / "file", new)
        with replacing(tmp_path / "folder") as partial:
            fill(partial, new)
        assert (tmp_path / "file").read_text() == new
        assert content(tmp_path / "folder") == [new, new]
    assert names(tmp_path) == ["file", "folder"]


def test_a_relative_name_is_written_where_the_process_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    write_text(Path("file"), "x")
    assert Path("file").read_text() == "x"
    Path("file").unlink()
    with appearing(Path(".")) as partial:  # an empty folder the user made, and stands in
        partial.mkdir()
        (partial / "file").touch()
    assert names(tmp_path / "here") == ["file"]


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, OSError])
def test_a_failure_leaves_the_old_and_nothing_else(tmp_path: Path, error: type[BaseException]) -> None:
    write_text(tmp_path / "file", "old")
    fill(tmp_path / "folder", "old")

    def fail(name: str) -> None:
        with replacing(tmp_path / name) as partial:
            partial.write_text("half") if name == "file" else fill(partial, "half")
            raise error

    for name in ("file", "folder"):
        with pytest.raises(error):
            fail(name)
    assert (tmp_path / "file").read_text() == "old"
    assert content(tmp_path / "folder") == ["old", "old"]
    assert names(tmp_path) == ["file", "folder"]


@pytest.mark.parametrize("failing", ["flush", "rename of a folder", "rename of a file"])
def test_a_full_disk_at_any_step_leaves_the_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    write_text(tmp_path / "file", "old")
    fill(tmp_path / "folder", "old")
    where, name = (files, "flush") if failing == "flush" else (os, "replace")
    real = getattr(where, name)
    calls = 0

    def full(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2 or failing == "rename of a file":  # of a folder's two renames, the second
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(where, name, full)
        if failing == "rename of a file":
            with pytest.raises(
                RunError, match=r"file: cannot be written .No space left on device.; the previous content"
            ) as told:
                write_text(tmp_path / "file", "new")
            assert "\n" not in str(told.value)
        else:
            with pytest.raises(OSError, match="No space"), replacing(tmp_path / "folder") as partial:
                fill(partial, "new")
    assert (tmp_path / "file").read_text() == "old"
    assert content(tmp_path / "folder") == ["old", "old"]
    assert names(tmp_path) == ["file", "folder"]


def until_event(write: Callable[[], None], watched: str, fatal: int) -> None:
    """In a process of its own: be killed at the n-th time that a file is touched."""
    left = fatal

    def watch(event: str, args: tuple[Any, ...]) -> None:
        nonlocal left
        if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir") and watched in str(args[:2]):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    write()


@pytest.mark.parametrize("what", ["file", "folder"])
def test_killed_at_every_operation_there_is_the_old_or_the_new(tmp_path: Path, what: str) -> None:
    target, seen, fatal = tmp_path / what, set(), 0

    def write(text: str) -> None:
        if what == "file":
            write_text(target, text)
        else:
            with replacing(target) as partial:
                fill(partial, text)

    while True:
        fatal += 1
        remove_leftovers(tmp_path)
        write("old")
        assert names(tmp_path) == [what]
        process = FORK.Process(target=until_event, args=(lambda: write("new"), str(tmp_path), fatal))
        process.start()
        process.join(60)
        if not target.exists():  # between the two renames of a folder: both are there, whole, under other names
            found = [content(path) for path in next(tmp_path.iterdir()).iterdir()]
            assert sorted(found) == [["new", "new"], ["old", "old"]]
            seen.add("between")
        else:
            found = [[target.read_text()]] if what == "file" else [content(target)]
            assert len(set(found[0])) == 1
            seen.add(found[0][0])
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
    assert seen == {"old", "new"} | ({"between"} if what == "folder" else set())
    assert fatal > 4


def test_everything_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda fd: (events.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))), real_fsync(fd))
    )
    monkeypatch.setattr(os, "replace", lambda a, b: (events.append(f"-> {b.name}"), real_replace(a, b)))
    known: set[str] = set()
    with appearing(tmp_path / "folder") as partial:
        fill(partial, "x")
    own = partial.name
    assert sorted(events[:3]) == ["a", "b", "inner"]
    assert events[3:] == [own, "-> folder", tmp_path.name]
    events.clear()
    with replacing(tmp_path / "other", on_disk=known) as partial:
        fill(partial, "x")
        known.add("a")  # a link to a file that was flushed long ago
    assert sorted(events[:2]) == ["b", "inner"]
    events.clear()
    write_text(tmp_path / "file", "x", durable=False)
    with replacing(tmp_path / "folder", durable=False) as partial:
        partial.mkdir()
    assert not [event for event in events if "->" not in event]


def test_a_new_folder_takes_no_ones_place(tmp_path: Path) -> None:
    fill(tmp_path / "folder", "old")
    with pytest.raises(OSError, match="not empty"), appearing(tmp_path / "folder") as partial:
        fill(partial, "new")
    assert content(tmp_path / "folder") == ["old", "old"]
    (tmp_path / "empty").mkdir()
    with appearing(tmp_path / "empty") as partial:
        fill(partial, "new")
    assert content(tmp_path / "empty") == ["new", "new"]
    assert names(tmp_path) == ["empty", "folder"]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("mine")
    (tmp_path / "outside folder").mkdir()
    (tmp_path / "file").symlink_to(tmp_path / "outside")
    write_text(tmp_path / "file", "new")
    assert not (tmp_path / "file").is_symlink()
    assert (tmp_path / "outside").read_text() == "mine"


def test_another_name_of_the_same_file_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "source").write_text("x")
    for _ in range(2):
        with replacing(tmp_path / "target", durable=False) as partial:
            os.link(tmp_path / "source", partial)
        assert (tmp_path / "target").samefile(tmp_path / "source")
        assert names(tmp_path) == ["source", "target"]


def test_threads_that_write_the_same_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    path, failures = tmp_path / "file", []

    def write(text: str) -> None:
        try:
            for _ in range(50):
                write_text(path, text * 5000, durable=False)
                assert len(set(path.read_text())) == 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert names(tmp_path) == ["file"]


def test_leftovers_of_killed_processes_are_removed_by_who_holds_the_folder(tmp_path: Path) -> None:
    for leftover in (".a.partial-1", ".[b].partial-2", ".c.partial-3-before"):
        fill(tmp_path / leftover, "half")
    (tmp_path / "a").write_text("whole")
    (tmp_path / ".hidden").touch()
    remove_leftovers(tmp_path, "[b]")
    assert names(tmp_path) == [".a.partial-1", ".c.partial-3-before", ".hidden", "a"]
    remove_leftovers(tmp_path)
    assert names(tmp_path) == [".hidden", "a"]
    remove_leftovers(tmp_path / "nowhere")


def test_reasons_are_in_the_systems_words() -> None:
    assert reason_of(OSError(errno.EACCES, "Permission denied", "x")) == "Permission denied"
    assert reason_of(ValueError("words")) == "words"
    assert reason_of(ValueError()) == "ValueError"
