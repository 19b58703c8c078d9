"""Runs every shell command of docs/tutorial-hospitals.md in order, then the same federation inline. Run by a test."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial-hospitals.md"
PATIENCE = float(os.environ.get("FEDL2G_TUTORIAL_SECONDS", "240"))  # for each thing that is waited for
SITES = ("north", "south", "east")


def commands() -> list[str]:
    """The lines of the tutorial's `sh` blocks."""
    blocks = re.findall(r"```sh\n(.*?)```", TUTORIAL.read_text(encoding="utf-8"), re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def wait(what: str, ready: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not ready():
        if time.monotonic() > end:
            raise SystemExit(f"waited {PATIENCE} s in vain: {what}")
        time.sleep(0.25)


def listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


class Tutorial:
    """The tutorial in a folder, and the processes it leaves in the background."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.background: list[subprocess.Popen[bytes]] = []

    def follow(self) -> None:
        for line in commands():
            started = time.monotonic()
            if line.startswith("cd "):
                self.folder /= line.removeprefix("cd ")
            elif line.endswith("&"):
                self.start(line.removesuffix("&"))
                if "superlink" in line:
                    wait("the SuperLink listens", lambda: listening(8443))
            else:
                done = subprocess.run(["sh", "-c", line], cwd=self.folder, capture_output=True, text=True)
                sys.stderr.write(f"$ {line}  ({time.monotonic() - started:.1f} s)\n{done.stdout}{done.stderr}\n")
                if done.returncode:
                    raise SystemExit(f"exit code {done.returncode}: {line}")
            if "run.sh" in line:
                wait("the run is over", (self.folder / "coordinator" / "run" / "result.json").is_file)
                sys.stderr.write(f"the run took {time.monotonic() - started:.1f} s\n")

    def start(self, line: str) -> None:
        self.background.append(subprocess.Popen(["sh", "-c", line], cwd=self.folder, start_new_session=True))

    def close(self) -> None:
        for process in self.background:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in self.background:
            process.wait()


def compare(folder: Path) -> dict[str, Any]:
    """What differs between the deployment and its inline twin, and what the exported models answer."""
    import inline_twin
    import torch

    coordinator = folder / "coordinator"
    predictions = {}
    for name in SITES:
        model = torch.jit.load(folder / "sites" / name / "model" / "model.torchscript")
        predictions[name] = list(model(torch.zeros(5, 3, 16, 16)).shape)
    found = inline_twin.main(folder, coordinator / "experiment.toml", coordinator / "run", {})
    return {"differences": found, "predictions": predictions}


def main(out: Path) -> None:
    tutorial = Tutorial(out)
    try:
        tutorial.follow()
        found = compare(tutorial.folder)
    finally:
        tutorial.close()
    sys.stdout.write("RESULT " + json.dumps(found) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
