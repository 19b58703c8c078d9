"""The code blocks of the README and of docs/, and what the comment above each says of it.

A block is run unless a comment stands above it: `<!-- not run: REASON -->`, `<!-- run by FILE -->` (another test does),
or `<!-- from FILE -->` (lines of that file). A page with the comment `<!-- slow -->` takes too long for `make test`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))
LANGUAGES = ("sh", "python", "toml")
BLOCK = re.compile(r"(?:^<!-- (?P<note>[^\n]*?) -->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """One block: where it stands, what is in it, and the comment above it."""

    page: str
    line: int
    language: str
    text: str
    note: str
    prints: str  # the plain block that follows with nothing between: what the block prints

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_run(self) -> bool:
        return not self.note

    @property
    def script(self) -> str:
        """The lines of a shell block that need nothing of the repository: those of `make` do."""
        return "\n".join(line for line in self.text.splitlines() if not line.startswith("make "))


def blocks_of(page: str) -> list[Block]:
    """The blocks of a page in a language that can be run or checked."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = list(BLOCK.finditer(text))
    blocks = []
    for index, match in enumerate(found):
        after = found[index + 1] if index + 1 < len(found) else None
        follows = after is not None and not after["language"] and not text[match.end() : after.start()].strip()
        prints = after["text"] if after is not None and follows else ""
        line = text.count("\n", 0, match.start("language")) + 1
        blocks.append(Block(page, line, match["language"], match["text"], match["note"] or "", prints))
    return [block for block in blocks if block.language in LANGUAGES]


def is_slow(page: str) -> bool:
    return "<!-- slow -->" in (ROOT / page).read_text(encoding="utf-8")


def write_program(path: Path, lines: str) -> None:
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)


def run_shell(block: Block, folder: Path, programs: Path) -> str:
    """Run the commands of a block in a folder, with the programs of another folder before all others."""
    path = os.pathsep.join([str(programs), os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(
        ["sh", "-eu", "-c", block.script], cwd=folder, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise AssertionError(f"{block}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout
