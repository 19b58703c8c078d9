"""Runs an experiment on a small disk until it has room, and compares it with a run that had it; prints JSON.

Arguments: an empty folder where a small file system is mounted, which this process may enlarge, and a seed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import fedl2g
from compared import experiment
from conftest import read_outcome
from fedl2g.errors import FedL2GError

TRIALS = 12


def resize(disk: Path, kilobytes: int) -> None:
    """Give the file system this size."""
    subprocess.run(["mount", "-o", f"remount,size={kilobytes}k", str(disk)], check=True)


def used(disk: Path) -> int:
    """The kilobytes that are taken."""
    found = os.statvfs(disk)
    return (found.f_blocks - found.f_bfree) * found.f_frsize // 1024


def main(disk: Path, seed: int) -> None:
    """Print what happened as one line."""
    draw = random.Random(seed)
    one = experiment("fedl2g-f", "plain", rounds=4, execution={"checkpoint_every": 1})
    resize(disk, 200_000)
    fedl2g.run(one, disk / "twin")
    expected, whole = read_outcome(disk / "twin"), used(disk)
    shutil.rmtree(disk / "twin")
    full = different = 0
    wrong: list[str] = []
    for _ in range(TRIALS):
        shutil.rmtree(disk / "run", ignore_errors=True)
        resize(disk, draw.randrange(8, int(whole * 1.2)) // 4 * 4)
        try:
            fedl2g.run(one, disk / "run")
        except FedL2GError as error:
            full += 1
            if error.exit_code != 2 or "\n" in str(error) or "No space left" not in str(error):
                wrong.append(str(error))
        except Exception as error:
            wrong.append(repr(error))
        resize(disk, 200_000)
        fedl2g.run(one, disk / "run")
        different += read_outcome(disk / "run") != expected
    sys.stdout.write("RESULT " + json.dumps({"full": full, "different": different, "wrong": wrong}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
