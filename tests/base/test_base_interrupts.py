"""A process that was started here does not outlive this one."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

CHILD = """
import ctypes, os, pathlib
from fedl2g import interrupts
interrupts.end_with_parent()
pathlib.Path("pid").write_text(str(os.getpid()))
{wait}
"""
PARENT = """
import sys, time
from fedl2g.interrupts import start_process
start_process([sys.executable, "-c", sys.argv[1]], first=None)
time.sleep(120)
"""
WAITS = {
    "in Python": "import time; time.sleep(120)",
    "in a library, with the interpreter's lock": "ctypes.PyDLL(None).sleep(120)",
}


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="by the kernel's means")
@pytest.mark.parametrize("where", WAITS)
def test_a_process_ends_with_the_one_that_started_it_whatever_it_does(where: str, tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD.format(wait=WAITS[where])], cwd=tmp_path)
    file = tmp_path / "pid"
    try:
        wait_for(lambda: file.exists() and file.read_text().isdigit(), 60)
        time.sleep(0.5)
        assert is_running(int(file.read_text()))
    finally:
        parent.kill()
        parent.wait()
    wait_for(lambda: not is_running(int(file.read_text())), 10)
