"""Temporary folders: private, removed by their process, and by the next one if it was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from fedl2g.temporary import remove_folder, temporary_folder

_END = """
import os, sys
from pathlib import Path
from fedl2g.temporary import temporary_folder
made = temporary_folder("states", Path(sys.argv[1]))
if os.fork() == 0:
    sys.exit()
os.wait()
assert made.is_dir()
"""

_MAKE = """
import sys, time
from pathlib import Path
from fedl2g.temporary import temporary_folder
print(temporary_folder("states", Path(sys.argv[1])), flush=True)
time.sleep(600)
"""


def _make_old(folder: Path) -> None:
    before = time.time() - 60
    os.utime(folder, (before, before))


def test_what_a_killed_process_left_is_removed_by_the_next_and_nothing_else(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", _MAKE, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    theirs = Path(process.stdout.readline().strip())
    assert theirs.stat().st_mode & 0o077 == 0
    (theirs / "client-000000.safetensors").write_bytes(b"weights")
    other_kind, foreign = tmp_path / "fedl2g-flower-x", tmp_path / "thesis"
    link = tmp_path / "fedl2g-states-link"
    for folder in (other_kind, foreign):
        folder.mkdir()
        _make_old(folder)
    link.symlink_to(foreign)
    _make_old(theirs)
    mine = temporary_folder("states", tmp_path)
    assert theirs.is_dir()  # in use
    process.send_signal(signal.SIGKILL)
    process.wait()
    _make_old(mine)
    second = temporary_folder("states", tmp_path)
    assert not theirs.exists()
    assert mine.is_dir()  # in use, by this process
    remove_folder(mine)
    remove_folder(second)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fedl2g-flower-x", "fedl2g-states-link", "thesis"]


def test_a_process_that_ends_leaves_no_folder_and_says_nothing(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", _END, str(tmp_path)], capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    assert list(tmp_path.iterdir()) == []
