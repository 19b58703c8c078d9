"""Installs the wheel of a folder into an empty environment and runs the README's blocks from another folder.

`make release` calls it: what is tried is what a reader gets who has the wheel and nothing of the repository.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from blocks import ROOT, blocks_of, run_shell, write_program


def main(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    os.environ.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory() as made:
        environment, folder, programs = (Path(made, name) for name in ("environment", "work", "programs"))
        venv.create(environment, with_pip=True)
        python = environment / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-compile", wheel], check=True)
        folder.mkdir()
        programs.mkdir()
        for name in ("python", "fedl2g"):
            write_program(programs / name, f'exec "{environment / "bin" / name}" "$@"')
        shutil.copytree(ROOT / "examples", folder / "examples")
        os.environ["FEDL2G_DATA"] = str(Path(made, "cache"))
        for block in blocks_of("README.md"):
            if not block.is_run or not block.script.strip():
                sys.stdout.write(f"{block}: not for who has the wheel alone\n")
                continue
            if block.language == "sh":
                run_shell(block, folder, programs)
            elif block.language == "python":
                subprocess.run([python, "-c", block.text], cwd=folder, check=True, stdout=subprocess.DEVNULL)
            sys.stdout.write(f"{block}: works\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
