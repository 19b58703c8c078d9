"""Runs every shell command of docs/tutorial-hospitals.md in order, then the same federation inline. Run by a test."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from real_federation import listening, wait

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial-hospitals.md"
PATIENCE = float(os.environ.get("FEDL2G_TUTORIAL_SECONDS", "240"))  # for each thing that is waited for
SITES = ("north", "south", "east")
OTHER = "65534"  # nobody


def commands() -> list[str]:
    """The lines of the tutorial's `sh` blocks; those that need a container engine are checked by tests/docs."""
    text = TUTORIAL.read_text(encoding="utf-8")
    blocks = re.findall(r"<!-- run by tests/flower/run_tutorial.py -->\n```sh\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == text.count("```sh") - text.count("<!-- not run: ")
    return [line for block in blocks for line in block.splitlines() if line.strip()]


class Tutorial:
    """The tutorial in a folder, and the processes it leaves in the background."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.background: list[subprocess.Popen[bytes]] = []
        self.printed: dict[str, str] = {}
        self.other_user = other_user(folder)

    def follow(self) -> None:
        for line in commands():
            started = time.monotonic()
            if line.endswith("&"):
                self.start(line.removesuffix("&"))
                if "superlink" in line:
                    wait("the SuperLink listens", lambda: listening(8443), PATIENCE)
                continue
            done = subprocess.run(
                [*self.user_of(line), "sh", "-c", line], cwd=self.folder, capture_output=True, text=True
            )
            self.printed[line] = done.stdout
            if line == "fedl2g deploy check coordinator":  # of the first run, before the page changes the file
                shutil.copy(self.folder / "coordinator" / "experiment.toml", self.folder / "coordinator" / "first.toml")
            sys.stderr.write(f"$ {line}  ({time.monotonic() - started:.1f} s)\n{done.stdout}{done.stderr}\n")
            if done.returncode:
                raise SystemExit(f"exit code {done.returncode}: {line}")
            if line.startswith("cp -r hospitals/sites/east") and self.other_user:
                subprocess.run(["chown", "-R", OTHER, "east-hospital"], cwd=self.folder, check=True)

    def start(self, line: str) -> None:
        words, _, log = line.partition(" > ")  # whose file another user could not write here
        command = [*self.user_of(line), "sh", "-c", f"exec {words}"]
        with (self.folder / log.removesuffix(" 2>&1 ")).open("wb") as file:
            started = subprocess.Popen(
                command, cwd=self.folder, start_new_session=True, stdout=file, stderr=subprocess.STDOUT
            )
        self.background.append(started)

    def user_of(self, line: str) -> list[str]:
        """The hospital `east` works as another user, who owns nothing but its folder."""
        words = ("deploy check east", "deploy pin east", "sh east-hospital", "export east")
        own = any(word in line for word in words)
        return self.other_user if own else []

    def close(self) -> None:
        for process in self.background:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in self.background:
            process.wait()


def other_user(folder: Path) -> list[str]:
    """What starts a command as another user, if this one may do that.

    Where the other may not read this Python or the folder's parents, it may read all files, and still write none.
    """
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return []
    user, home = ["setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups"], ["env", "HOME=/nonexistent"]
    reads = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    for found in ([*user, *home], [*user, *reads, *home]):
        trial = f"import os, fedl2g.cli, torch, flwr; os.listdir({str(folder)!r})"
        if subprocess.run([*found, sys.executable, "-c", trial], capture_output=True).returncode == 0:
            return found
    return []


def compare(folder: Path, printed: dict[str, str]) -> dict[str, Any]:
    """What differs between the deployment and its inline twin, what the exported models answer, what was shown."""
    import inline_twin
    import torch

    coordinator, gathered = folder / "coordinator", folder / "gathered"
    predictions = {}
    for name in SITES:
        model = torch.export.load(folder / f"{name}-hospital" / "model" / "model.pt2").module()
        predictions[name] = list(model(torch.zeros(5, 3, 16, 16)).shape)
        (gathered / "sites").mkdir(parents=True, exist_ok=True)
        (gathered / "sites" / name).symlink_to(folder / f"{name}-hospital" / "federation")
    found = inline_twin.main(gathered, coordinator / "first.toml", coordinator / "runs" / "first", {})
    shown = next(text for line, text in printed.items() if line.startswith("fedl2g show"))
    log = next(text for line, text in printed.items() if line.startswith("cat "))
    originals = [str(path) for path in folder.rglob("*") if path.is_file() and names_original(path, folder)]
    return {"differences": found, "predictions": predictions, "shown": shown, "log": log, "originals": originals}


def names_original(path: Path, folder: Path) -> bool:
    """Whether a file names the folder in which the federation was made, and which is gone."""
    return path.suffix in (".toml", ".sh", ".service", ".md", ".py") and str(folder / "hospitals") in path.read_text()


def main(out: Path) -> None:
    tutorial = Tutorial(out)
    try:
        tutorial.follow()
        found = {**compare(tutorial.folder, tutorial.printed), "other user": bool(tutorial.other_user)}
    finally:
        tutorial.close()
    sys.stdout.write("RESULT " + json.dumps(found) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
